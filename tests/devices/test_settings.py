"""What ``gpus=`` of a server may say."""

import pytest

from nbtriton.backends.devices.device_set import DeviceSet, checked_gpus
from nbtriton.backends.devices.settings import SimulatedGPUs
from nbtriton.common.errors import InvalidArgumentError


def test_the_text_says_the_settings():
    assert checked_gpus("simulated:2") == SimulatedGPUs(2)
    assert checked_gpus("simulated") == SimulatedGPUs(1)
    text = "simulated:3,memory_mib=512,matmul=20"
    found = checked_gpus(text)
    assert found == SimulatedGPUs(3, memory_mib=512.0, matmul=20.0)
    assert str(found) == text
    assert checked_gpus([0, 1]) == (0, 1)
    assert checked_gpus(None) is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("simulated:0", "0 simulated GPUs cannot be"),
        ("simulated:x", "is not a list of GPU ids, and names no simulated GPUs"),
        ("similated:2", "is not a list of GPU ids, and names no simulated GPUs"),
        ("simulated:1,memory_mb=4", "has no setting 'memory_mb'"),
        ("simulated:1,matmul=fast", "is not a number"),
        ("simulated:1,matmul=0", "not a number above 0"),
        ("simulated:1,launch_us=nan", "not a number above 0"),
    ],
)
def test_what_means_nothing_is_refused(text, part):
    with pytest.raises(InvalidArgumentError) as error:
        checked_gpus(text)
    assert part in error.value.message


def test_the_nearest_setting_is_named():
    with pytest.raises(InvalidArgumentError) as error:
        checked_gpus("simulated:1,memory_mb=4")
    assert "memory_mib" in error.value.hint


def test_durations_follow_the_settings():
    gpus = SimulatedGPUs(copy_gb_per_s=10, copy_latency_us=20, launch_us=3, matmul=4)
    assert gpus.copy_ns(1_000_000) == 20_000 + 100_000
    assert gpus.compute_ns("matmul", 400_000) == 3_000 + 100_000
    assert gpus.compute_ns("elementwise", 400_000) == 3_000 + 400_000


def test_a_set_has_the_devices_of_its_ids():
    devices = DeviceSet(SimulatedGPUs(2))
    assert list(devices) == [0, 1]
    assert devices[1] is devices[1]
    assert devices[1].name == "simulated GPU 1"
    with pytest.raises(KeyError):
        devices[2]
