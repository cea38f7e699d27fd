// What the view of a timeline says: about a stretch, a request, a batch.

/** @typedef {[string, string, string, Pattern]} Mark letter, role, words, pattern */
const MOST_ROWS = 12; // of a selection's table

/** A time in a unit that fits it. @param {number} ms */
function lasting(ms) {
  if (ms < 1000) return `${measure(ms)} ms`;
  return `${ms < 10000 ? measure(ms / 1000) : count(ms / 1000)} s`;
}

/** How often each key is there, most often first. @template T @param {T[]} keys @returns {[T, number][]} */
function tallied(keys) {
  const counts = new Map();
  for (const key of keys) counts.set(key, (counts.get(key) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

/** @param {number[]} numbers */
function sum(numbers) {
  return numbers.reduce((all, one) => all + one, 0);
}

/** The sentence about what is shown.
 * @param {string} title @param {Part[]} parts @param {Mark[]} marks @param {number} wide in ms
 * @param {{latest: number, left_out: number}} records */
function timelineSentence(title, parts, marks, wide, { latest, left_out }) {
  const batches = parts.flatMap((part) => part.batches);
  const ended = batches.filter((b) => !b.open);
  const [most, next] = tallied(ended.map((b) => b.mark));
  const whose = ended.length === 1 ? "its reason" : `the reason of ${most?.[1] === ended.length ? "all" : count(most?.[1] ?? 0)}`;
  const why = most?.[1] === next?.[1] ? ", for different reasons" : `; ${whose}: ${marks[most[0]][2]}`;
  let sentence = most
    ? `${title}: ${counted(ended.length, "batch", "batches")} with ${counted(sum(ended.map((b) => b.rows)), "row")} within `
      + `${measure(wide)} ms${why}`
    : `${title}: no batch ended in this stretch`;
  if (latest > -Infinity) {
    const running = batches.filter((b) => b.open).map((b) => b.end - b.begin);
    const held = parts.flatMap((part) => part.waits).filter((w) => w.open && w.left >= w.end).length;
    const words = [
      running.length && `${counted(running.length, "batch", "batches")} running, for up to ${lasting(Math.max(...running))}`,
      held && `${counted(held, "request")} waiting`,
    ].filter(Boolean).join(", ");
    if (words) sentence = most ? `${sentence}. ${words}` : `${title}: ${words}`;
  }
  return left_out ? `${sentence}. A sample: ${counted(left_out, "batch", "batches")} came too fast to be drawn` : sentence;
}

/** The life of a request, and of the batch that it rode in; or of a batch.
 * @param {Wait | null} wait @param {Batch | null} batch @param {Mark[]} marks @param {Lanes[]} models */
function lifeOf(wait, batch, marks, models) {
  const words = [];
  if (wait) {
    words.push(`Request ${wait.number} of ${counted(wait.rows, "row")}: arrived at ${measure(wait.begin)} ms`);
    if (wait.lane >= 0) {
      words.push(`waited ${measure(wait.left - wait.begin)} ms`);
      words.push(wait.open ? "not answered yet" : `answered after ${measure(wait.end - wait.begin)} ms`);
    } else if (wait.open) words.push(`inside for ${lasting(wait.end - wait.begin)}, not answered yet`);
    else words.push(`${measure(wait.end - wait.begin)} ms in flight, without a batch of its own`);
    if (wait.failed) words.push("failed");
  }
  if (batch) {
    const [letter, , reason] = marks[batch.mark];
    words.push(
      `${wait ? "it rode in a" : "A"} batch of ${counted(batch.rows, "row")} from ${counted(batch.requests, "request")} `
        + `that ${batch.open ? "has run" : "ran"} ${measure(batch.end - batch.begin)} ms on `
        + `${models[batch.model].lanes[batch.lane]} and left because of ${letter}: ${reason}`,
    );
    if (!wait) words.push(`its oldest request waited ${measure(batch.wait)} ms`);
    if (batch.failed) words.push("it failed");
  }
  return words.length ? `${words.join("; ")}.` : "";
}

/** The marks that are drawn, with their words. @param {Mark[]} marks */
function markItems(marks) {
  return marks.map(([letter, role, words, lines]) => {
    const item = make("li", "");
    const paint = `stroke:var(--nbt-${role});fill:none`;
    item.append(
      build(["svg", { width: "20", height: "14", "aria-hidden": "true" }, [
        ["rect", { x: "0.5", y: "0.5", width: "19", height: "13",
          style: `${paint};fill:color-mix(in srgb,var(--nbt-${role}) 40%,var(--nbt-bg))` }, []],
        ...lines.map(([middle, thick, on, off]) => /** @type {Spec} */ (["path", {
          d: `M0 ${middle * 14}h20`, "stroke-width": String(thick * 14), style: paint,
          ...(off ? { "stroke-dasharray": `${on} ${off}` } : {}),
        }, []])),
      ]]),
      make("b", "", letter),
      make("span", "", words),
    );
    return item;
  });
}

/** What a selected stretch holds of each model. @param {Part[]} parts @param {Mark[]} marks */
function stretchTable(parts, marks) {
  const table = make("table", "nbt-numbers");
  const rows = parts.slice(0, MOST_ROWS);
  const times = rows.map(({ waits }) => {
    const took = waits.filter((w) => !w.open).map((w) => w.end - w.begin).sort((a, b) => a - b);
    const waited = waits.filter((w) => w.lane >= 0).map((w) => w.left - w.begin);
    return [percentile(took, 50), percentile(took, 99), sum(waited) / waited.length];
  });
  // One unit for all times.
  const [unit, per_ms] = times.flat().some((time) => time >= 1) ? ["ms", 1] : ["µs", 1000];
  table.append(tableRow("th", [
    "model", "requests", ...["p50", "p99", "mean wait"].map((name) => `${name} [${unit}]`), "batches", "mean rows", "reasons",
  ]));
  rows.forEach(({ name, waits, batches }, at) => {
    const reasons = tallied(batches.map((batch) => marks[batch.mark][0])).map(([letter, many]) => `${letter} ${count(many)}`);
    table.append(tableRow("td", [
      name, count(waits.length), ...times[at].map((time) => measure(time * per_ms)), count(batches.length),
      measure(sum(batches.map((batch) => batch.rows)) / batches.length), reasons.join(", ") || "–",
    ]));
  });
  if (parts.length <= MOST_ROWS) return [table];
  return [table, make("div", "", `and ${counted(parts.length - MOST_ROWS, "more model")}`)];
}
