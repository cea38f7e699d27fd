"""What nbtriton does differently from tritonserver 2.51 on purpose, by name, and how cases apply it.

Users read the same names with their reasons in ``docs/differences.md``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nbtriton.model.config import parse_pbtxt
from tests.differential.harness import Answer, Outcome, Scenario

__all__ = ["CASE", "NAMES", "Verdict", "compare"]

# Name -> what shows it: cases of this suite, or a test where tritonserver has nothing to compare.
CASE = "case"
NAMES = {
    # Requests
    "required-inputs": CASE,
    "empty-batches": CASE,
    "one-memory": CASE,
    "exact-numbers": "tests/frontends/test_codec.py::test_numbers_in_json_are_the_nearest_ones",
    "bool-bytes": "tests/frontends/test_cases.py::test_KS3_KS5_answer",
    "repeated-inputs": "tests/engine/test_lifecycle.py::test_the_first_tensor_of_a_name_counts",
    "repeated-outputs": "tests/backends/test_execute.py::test_the_first_output_of_a_name_counts",
    "deadly-requests": "tests/frontends/test_cases.py::test_KS3_KS5_answer",
    "classification-ties": "tests/frontends/test_codec.py::test_classification_is_a_stable_sort",
    "http-syntax": "tests/frontends/test_connections.py::test_bytes_that_are_not_http_end_only_their_own_connection",
    "shared-memory-regions": (
        "tests/frontends/test_shared_memory.py::test_KS43_offsets_count_once_and_keys_may_be_shared"
    ),
    "zero-bytes": "tests/frontends/test_cases.py::test_KS3_KS5_answer",
    "log-settings": "tests/frontends/test_logs.py::test_a_refused_request_changes_nothing",
    "truncated-compression": (
        "tests/frontends/test_connections.py::test_a_compressed_body_that_cannot_be_read_is_refused"
    ),
    "decompressed-size": "tests/frontends/test_starving.py::test_tensors_of_a_bomb",
    "parts-of-a-request": (
        "tests/frontends/test_grpc_codec.py::"
        "test_a_message_with_too_many_fields_is_refused_before_it_is_built"
    ),
    "calls-at-a-time": (
        "tests/frontends/test_starving.py::test_the_limit_of_open_calls_is_advertised_and_enforced"
    ),
    "http2-violations": "tests/frontends/h2/test_rfc9113_5_streams.py::test_5_streams",
    "http-disconnects": "tests/frontends/test_connections.py::test_X1_a_client_that_leaves_cancels_its_request",
    "connections-at-a-time": (
        "tests/frontends/test_connections.py::test_too_many_connections_are_refused"
    ),
    # Queues and batches
    "queue-latency": CASE,
    "loading-under-a-rate-limit": (
        "tests/engine/test_rate_limiter_live.py::test_a_load_waits_for_no_resources"
    ),
    "custom-batching-in-python": "tests/engine/test_custom_batching.py::test_a_strategy_may_be",
    # Models
    "unanswered-requests": CASE,
    "second-responses": CASE,
    "crashed-instances": "tests/engine/test_faults.py::test_a_model_that_leaves_by_sys_exit_keeps_serving",
    "module-names": (
        "tests/backends/test_imports.py::test_of_two_models_with_a_module_of_one_name_the_first_one_keeps_it"
    ),
    "environments": (
        "tests/workers/test_environment.py::test_PB91_an_archive_is_unpacked_once_and_again_when_it_has_changed"
    ),
    "names-of-python-models": (
        "tests/backends/test_python_based.py::test_a_name_with_a_character_that_triton_refuses_is_refused"
    ),
    "missing-model-file": "tests/backends/test_lifecycle.py::test_PB6_a_missing_file_fails_at_once",
    "long-file-path": (
        "tests/repository/test_control.py::test_L12_a_name_that_no_file_system_takes_is_refused"
    ),
    "input-order": (
        "tests/engine/test_ensembles.py::test_inputs_stand_in_the_order_in_which_they_were_sent"
    ),
    "newer-fields": "tests/engine/test_step_gate.py::test_E21_a_step_holds_at_most_its_limit_of_requests",
    "response-parameters": (
        "tests/backends/test_pb_calls.py"
        "::test_parameters_of_a_response_work_with_a_warning_that_they_are_newer"
    ),
    "unread-responses": (
        "tests/engine/test_unread_responses.py"
        "::test_a_model_is_at_most_so_many_responses_ahead_of_its_reader"
    ),
    "tensor-datatype-number": "tests/backends/test_pb_utils.py::test_PB42_a_tensor_is_its_array",
    "unreadable-completion": (
        "tests/config/test_config_autocomplete.py::test_AC4_nonsense_is_an_error"
    ),
    "text-in-utf-8": "tests/config/test_config_text.py::test_bytes_with_foreign_values",
    "pytorch-datatypes": (
        "tests/backends/test_pytorch.py::test_outputs_are_plain_arrays_that_may_be_changed"
    ),
    "onnx-sessions": "tests/backends/test_onnxruntime.py::test_instances_share_a_session",
    "onnx-strings": "tests/backends/test_onnxruntime.py::test_strings",
    "onnx-accelerators": (
        "tests/config/test_config_ignored.py::test_a_field_that_never_has_an_effect"
    ),
    "gpu-memory-limit": (
        "tests/devices/test_serving.py::test_DM1_a_model_that_does_not_fit_is_refused_in_tritons_words"
    ),
    "instance-names": "tests/engine/test_updates.py::test_instances_have_names_of_their_own",
    "version-policy-reported": (
        "tests/engine/test_updates.py::test_L16_L17_a_new_version_policy_alone_is_an_update_too"
    ),
    "update-does-not-wait": (
        "tests/engine/test_updates.py::test_L16_requests_in_flight_finish_on_their_instance"
    ),
    "first-update": "tests/repository/test_control.py::test_L16_polling",
    # Sequences
    "padding-zeros": "tests/engine/test_sequences.py::test_DI2_DI3_DI4_rows_keep_their_slots_and_padding_is_zeros",
    "state-zeros": "tests/engine/test_sequences.py::test_I2_start_begins_with_a_fresh_state",
    "state-from-python": (
        "tests/engine/test_sequences.py"
        "::test_I1_I5_the_state_goes_from_one_request_of_a_sequence_to_the_next"
    ),
    "string-correlation-ids": "tests/engine/test_sequences.py::test_C3_C4_the_correlation_id_in_every_type",
    "correlation-id-types": (
        "tests/engine/test_sequences.py"
        "::test_text_where_the_control_is_a_number_is_the_number_it_says_or_a_hash"
    ),
    "cancelled-sequences": (
        "tests/engine/test_sequences.py::test_X5_a_cancelled_request_takes_those_behind_it_along"
    ),
    "reschedule-refused": (
        "tests/engine/test_sequences_iterative.py::test_IT6_elsewhere_only_the_request_itself_fails"
    ),
    "iterative-end": (
        "tests/engine/test_sequences_iterative.py::test_IT8_a_request_that_ends_its_sequence_runs_on_with_a_warning"
    ),
    "iterative-failures": (
        "tests/engine/test_sequences_iterative.py::test_IT1_IT3_IT4_passes_of_one_request"
    ),
    # Ensembles and calls
    "refused-branches": (
        "tests/engine/test_ensembles.py::test_E13_a_refused_step_fails_the_ensemble_while_others_run"
    ),
    "ensemble-pruned-inputs": CASE,
    "cancelled-ensembles": "tests/engine/test_futures.py::test_X6_cancelling_an_ensemble_drops_its_waiting_step",
    "bls-deadlock": "tests/engine/test_deadlocks.py::test_two_models_that_call_each_other_get_an_error",
    "bls-stream-errors": CASE,
    "bls-cancel": "tests/engine/test_bls_cancel.py::test_a_called_model_decides_about_cancellation",
    # Traces
    "trace-details": "tests/frontends/test_tracing.py::test_a_hit_of_the_cache_computes_nothing",
    "trace-modes": "tests/frontends/test_tracing.py::test_wrong_settings_are_refused",
    # Model control
    "override-paths": (
        "tests/repository/test_control.py::test_no_configuration_of_a_client_names_files_elsewhere"
    ),
    "restricted-header-case": ("tests/frontends/test_grpc_endpoint.py::test_a_restricted_protocol"),
    "override-files-count": (
        "tests/repository/test_control.py::test_files_that_come_with_the_same_configuration_count"
    ),
    # Command line
    "model-namespacing": (
        "tests/repository/test_control.py::test_a_model_of_two_repositories_is_none"
    ),
    "shutdown-over-grpc": (
        "tests/cli/test_cli_serve.py::test_calls_of_models_and_steps_of_ensembles_are_finished"
    ),
    "addresses": "tests/cli/test_cli_serve.py::test_an_open_address_is_warned_about",
    "flag-values": "tests/cli/test_flags.py::test_the_error_names_the_nearest_flag_or_value",
    # Metrics
    "metrics-pinned-pool": "tests/frontends/test_metrics.py::test_the_pinned_pool_is_empty",
    "metrics-quantiles": (
        "tests/frontends/test_metrics.py::test_a_quantile_is_one_of_the_values_within_a_percent"
    ),
    "metrics-without-latencies": (
        "tests/frontends/test_metrics.py::test_counter_latencies_can_be_off"
    ),
    # Response cache
    "cache-key": CASE,
    "cache-errors": CASE,
    "cache-gaps": "tests/scheduling/test_cache_space.py::test_K7_K11_entries_of_any_sizes_leave_no_gaps",
    "cache-with-order": "tests/engine/test_cache.py::test_D12_hits_take_part_in_the_order",
    # Where instances live, further backends, OpenAI
    "instances-in-threads": "tests/engine/test_interpreter_wait.py::test_python_code_waits_for_the_interpreter",
    "host-policies": "tests/workers/test_isolation_options.py::test_L24_policies_are_checked_when_they_are_set",
    "shared-cores": "tests/workers/test_resources.py::test_workers_share_the_cores_and_get_them_back",
    "pytorch-runtime": "tests/backends/test_pytorch_runtime.py::test_thread_counts_have_other_names_with_the_python_runtime",
    "fil-on-the-host": "tests/backends/test_fil.py::test_a_gpu_is_refused_in_the_words_of_a_build_without_one",
    "fil-checks": "tests/backends/test_fil.py::test_FL4_a_configuration_that_does_not_fit_the_model",
    "fil-completion": "tests/backends/test_fil.py::test_an_estimator_of_scikit_learn_answers_as_itself",
    "openvino-completion": "tests/backends/test_openvino.py::test_OV2_inputs_outputs_and_batching_are_completed",
    "openvino-padding": "tests/backends/test_openvino.py::test_OV4_a_batch_is_whole_or_padded",
    "shape-tensors": "tests/backends/test_stand_in.py::test_G9_the_documented_batch_of_three_requests",
    "stand-ins": "tests/backends/test_stand_in.py::test_a_model_without_backend_answers_zeros_of_its_shapes",
    "unstable-levels": (
        "tests/perf/test_perf_live.py::test_time_windows_measure_until_stable_or_out_of_trials"
    ),
    "recorded-requests": (
        "tests/recordings/test_recording.py::test_requests_for_other_models_and_refused_ones_are_not_in_it"
    ),
    "chat-without-tokenizer": "tests/frontends/test_openai.py::test_a_chat_is_a_prompt_by_the_template",
}


@dataclass(frozen=True)
class Verdict:
    """What two outcomes of one scenario come to.

    ``deliberate`` names the expected difference, empty without one; ``difference``
    has all other differences, empty without one.
    """

    deliberate: str = ""
    difference: str = ""


def compare(scenario: Scenario, theirs: Outcome, mine: Outcome) -> Verdict:
    """Compare nbtriton's outcome with what tritonserver's says it must be."""
    expected, deliberate = _expected(scenario, theirs)
    expected = _either_way(scenario, expected, mine.statistics)
    their_times = _times(scenario, theirs.answers, "tritonserver")
    if scenario.deliberate and expected == theirs and not their_times:
        return Verdict(difference=f"tritonserver does not show '{deliberate}': {theirs}")
    lines = [
        *([] if scenario.deliberate else their_times),
        *_times(scenario, mine.answers, "nbtriton"),
        *(
            f"answer {number}:\n  tritonserver {t}\n  nbtriton     {m}"
            for number, (t, m) in enumerate(zip(expected.answers, mine.answers, strict=True))
            if t != m
        ),
    ]
    for part in ("batches", "statistics", "order"):
        if getattr(expected, part) != getattr(mine, part):
            lines.append(
                f"{part}:\n  tritonserver {getattr(expected, part)}\n"
                f"  nbtriton     {getattr(mine, part)}"
            )
    return Verdict(deliberate, "\n".join(lines))


def _expected(scenario: Scenario, theirs: Outcome) -> tuple[Outcome, str]:
    """Return what nbtriton must do, and the deliberate difference that makes it another thing."""
    name = scenario.deliberate
    answers = [scenario.instead.get(n, answer) for n, answer in enumerate(theirs.answers)]
    statistics = {
        model: {
            key: count
            for key, count in {**counts, **scenario.instead_counts.get(model, {})}.items()
            if count
        }
        for model, counts in theirs.statistics.items()
    }
    return replace(theirs, answers=answers, statistics=statistics), name


def _either_way(
    scenario: Scenario, expected: Outcome, mine: Mapping[str, Mapping[str, Any]]
) -> Outcome:
    """Let chance decide how often a request counts as failed that has steps side by side.

    It counts twice where nothing runs any more when a step fails, and once where another one does.
    """
    ensembles = {
        model.name
        for model in scenario.models
        if model.source is None and _side_by_side(model.config)
    }
    failed = sum(answer.status != "OK" for answer in expected.answers)
    statistics = {}
    for name, counts in expected.statistics.items():
        found = [statistics.get("fail", 0) for statistics in (counts, mine.get(name, {}))]
        near = failed and all(failed <= fails <= 2 * failed for fails in found)
        statistics[name] = (
            {**counts, "fail": found[1]} if name in ensembles and near else dict(counts)
        )
    return replace(expected, statistics=statistics)


def _side_by_side(config: str) -> bool:
    """Return True if an ensemble has two steps of which neither waits for the other."""
    steps = parse_pbtxt(config).ensemble_scheduling.step
    behind = [
        {
            number
            for number, other in enumerate(steps)
            if {*step.output_map.values()} & {*other.input_map.values()}
        }
        for step in steps
    ]
    for _ in steps:
        for found in behind:
            found.update(*[behind[number] for number in found])
    return any(
        one not in behind[other] and other not in behind[one]
        for one, other in itertools.combinations(range(len(steps)), 2)
    )


def _times(scenario: Scenario, answers: list[Answer], side: str) -> list[str]:
    return [
        f"{side}: request {number} took {answer.took_s:.3f} s"
        for number, (send, answer) in enumerate(zip(scenario.traffic, answers, strict=True))
        if not send.takes_s[0] <= answer.took_s <= send.takes_s[1]
    ]
