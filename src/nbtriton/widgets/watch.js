/** @typedef {{name: string, version: number, state: string, lanes: string[], bins: string[]}} Shown */

const COLUMNS = [
  "model", "version", "state", "queued", "executing", "throughput infer/s", "queue ms", "compute ms", "inferences",
  "executions", "failed",
].map((head) => head.split(" "));
const FEW_MODELS = 8;

/** @param {() => number} next */
function readModel(next) {
  const [queued, executing, rate, queueMs, computeMs, inferences, executions, failed, recent, worked] =
    Array.from({ length: 10 }, next);
  const [samples, lanes, bins, changes, shares] = Array.from({ length: 5 }, next);
  const many = () => Array.from({ length: samples }, next);
  return {
    queued, executing, rate, queueMs, computeMs, inferences, executions, failed, recent, worked,
    ages: many(),
    depths: many(),
    lanes: Array.from({ length: lanes }, () => ({ share: next(), batch: next(), busy: many() })),
    bins: Array.from({ length: bins }, next),
    changes: Array.from({ length: changes }, next),
    shares: Array.from({ length: shares }, next),
  };
}

/** The outline and the area of values over time inside a plot. A value is that of the time since the
 * sample before it: none is drawn across a pause that follows it.
 * @param {number[]} ages @param {number[]} values @param {number} high @param {number} span
 * @param {{x: number, y: number, width: number, height: number}} plot */
function steps(ages, values, high, span, plot) {
  const bottom = plot.y + plot.height;
  const base = bottom.toFixed(1);
  let left = "";
  let first = base;
  let on = "";
  for (let i = 0; i < ages.length; i++) {
    if (ages[i] > span) continue;
    const x = (plot.x + (1 - ages[i] / span) * plot.width).toFixed(1);
    const y = (bottom - Math.min(values[i] / high, 1) * plot.height).toFixed(1);
    if (!on) first = y;
    if (left) on += `V${y}H${x}`;
    else left = x;
  }
  return left ? { line: `M${left} ${first}${on}`, area: `M${left} ${base}${on}V${base}z` } : { line: "", area: "" };
}

/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", "nbt-root nbt-watch");
  const finding = make("p", "nbt-watch-finding nbt-finding");
  const picture = make("div", "nbt-watch-picture");
  const table = /** @type {HTMLTableElement} */ (make("table", "nbt-watch-table nbt-numbers"));
  const scroll = make("div", "nbt-watch-scroll");
  // As in the static form; with many models the lines above have what moves, and the table costs more than they do.
  const numbers = /** @type {HTMLDetailsElement} */ (make("details", ""));
  const picked = make("div", "nbt-watch-picked");
  const words = make("span", "");
  picked.hidden = true;
  picked.append(words, " ", makeButton("Clear", () => selection.put({})));
  scroll.append(table);
  numbers.append(make("summary", "", "the numbers as a table"), scroll);
  root.append(finding, picture, picked, numbers);
  el.append(root);

  /** @type {Element[]} */
  let cards = [];
  // What changes in each card, by its role: looking for it would cost more than drawing it.
  /** @type {Map<Element, Map<string, Element[]>>} */
  let parts = new Map();
  /** @type {HTMLElement[][]} */
  let cells = [];
  let span = 30;
  let now_ns = 0;
  let marked = false;
  let decided = false; // whether the table is open: after that a reader does
  let high = 4;
  /** @type {ReturnType<typeof readModel>[]} */
  let data = []; // of the newest frame

  /** @param {Spec | undefined} scene */
  const build_all = (scene) => {
    if (!scene) return;
    picture.replaceChildren(build(scene));
    cards = [...picture.querySelectorAll("[data-model]")];
    parts = new Map(cards.map((card) => {
      const roles = new Map();
      for (const one of card.querySelectorAll("[data-role]")) {
        const role = one.getAttribute("data-role");
        roles.set(role, [...(roles.get(role) ?? []), one]);
      }
      return [card, roles];
    }));
    const head = tableRow("th", COLUMNS.map(([name]) => name));
    [...head.cells].forEach((cell, column) => {
      cell.setAttribute("scope", "col");
      sortable(/** @type {HTMLTableCellElement} */ (cell), column > 2);
      const [, unit] = COLUMNS[column];
      if (unit) cell.append(make("br", ""), make("small", "", unit));
    });
    const top = make("thead", "");
    top.append(head);
    const body = make("tbody", "");
    cells = /** @type {Shown[]} */ (model.get("models")).map(({ name, version, state }) => {
      const row = tableRow("td", COLUMNS.map((_, at) => [name, String(version), state][at] ?? ""));
      row.dataset.model = name;
      [...row.cells].forEach((cell, at) => { [cell.dataset.column] = COLUMNS[at]; });
      body.append(row);
      return [...row.cells];
    });
    const at = [...table.querySelectorAll("th")].findIndex((cell) => cell.ariaSort !== "none");
    const sort = table.querySelectorAll("th")[at]?.ariaSort ?? "";
    table.replaceChildren(top, body);
    if (!decided) numbers.open = cells.length <= FEW_MODELS;
    decided = decided || cells.length > 0;
    if (at >= 0) table.querySelectorAll("th")[at].setAttribute("aria-sort", sort);
  };

  const draw = () => {
    write(finding, model.get("finding"));
    const next = reader(model.get("frame"));
    if (!next.left()) return;
    next();
    span = next();
    now_ns = next();
    const all = Array.from({ length: next() }, () => readModel(next));
    if (all.length !== cells.length) return;
    data = all;
    // One scale for all, as in Python; cards and table are of one frame.
    high = roundedUp(Math.max(4, ...all.flatMap(({ depths }) => depths)), [1, 2, 4, 5, 8]);
    for (const axis of picture.querySelectorAll('[data-role="axis"]')) write(axis, `${Math.round(span)} s ago`);
    // The last models are those at rest, in one line.
    cards.forEach((card, i) => { draw_card(card, all[i]); });
    if (numbers.open) draw_rows();
    mark();
  };

  /** The selected stretch as a band over each queue, and in words. */
  const mark = () => {
    const { from_ns, to_ns, model: only } = selection.get();
    const [from, to] = [from_ns, to_ns].map((at) => (at === undefined ? NaN : (now_ns - at) / 1e9));
    const seen = from >= 0 && to <= span;
    const any = Boolean(from_ns || only);
    if (!any && !marked) return;
    marked = any;
    for (const card of cards) {
      card.classList.toggle("nbt-only", card.getAttribute("data-model") === only);
      card.querySelector(".nbt-band")?.remove();
      const queue = card.querySelector('[data-role="queue-area"]');
      if (!queue || !seen) continue;
      const { x, y, width, height } = plot(queue);
      const at = (/** @type {number} */ age) => x + (1 - Math.min(Math.max(age, 0), span) / span) * width;
      // A stretch of milliseconds is still seen.
      const wide = Math.max(3, at(to) - at(from));
      queue.before(build(["rect", {
        class: "nbt-band nbt-f-s0", x: (at(from) - Math.max(0, 3 - at(to) + at(from)) / 2).toFixed(1), y: String(y),
        width: wide.toFixed(1), height: String(height), opacity: "0.35", "pointer-events": "none",
      }, []]));
    }
    picked.hidden = from_ns === undefined && !only;
    const when = Number.isNaN(from) ? "" : `selected: ${measure((from - to) * 1000)} ms, ${seen ? `${measure(to)} s ago` : "before what is drawn"}`;
    write(words, [when, only ? `model ${only}` : ""].filter(Boolean).join("; "));
  };
  const selection = shareSelection(model, mark);
  numbers.addEventListener("toggle", () => draw());

  // A drag over a queue selects that time in all views.
  /** @type {{card: Element, from: number} | null} */
  let drag = null;
  /** How long ago a place in a card's queue is. @param {Element} card @param {PointerEvent} event */
  const age_at = (card, event) => {
    const svg = /** @type {SVGSVGElement} */ (card.closest("svg"));
    const queue = card.querySelector('[data-role="queue-area"]');
    const matrix = svg.getScreenCTM();
    if (!queue || !matrix) return null;
    const { x, width } = plot(queue);
    const share = (new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse()).x - x) / width;
    return share < -0.02 || share > 1.02 ? null : (1 - Math.min(1, Math.max(0, share))) * span;
  };
  picture.addEventListener("pointerdown", (event) => {
    const card = /** @type {Element} */ (event.target).closest("[data-model]");
    const from = card && !event.button ? age_at(card, event) : null;
    if (!card || from === null) return;
    drag = { card, from };
    event.preventDefault();
  });
  picture.addEventListener("pointerup", (event) => {
    const to = drag && age_at(drag.card, event);
    if (drag && to !== null && Math.abs(to - drag.from) > span / 100) {
      const [from, until] = [Math.max(to, drag.from), Math.min(to, drag.from)].map((age) => Math.round(now_ns - age * 1e9));
      const { model: only } = selection.get();
      selection.put({ ...(only ? { model: only } : {}), from_ns: from, to_ns: until });
    }
    drag = null;
  });

  /** @param {Element} card @param {ReturnType<typeof readModel>} data */
  const draw_card = (card, data) => {
    const of_role = (/** @type {string} */ role) => parts.get(card)?.get(role) ?? [];
    const part = (/** @type {string} */ role) => of_role(role)[0] ?? null;
    write(part("rate"), measure(data.rate));
    write(part("rate-over"), data.worked ? "infer/s while it worked" : "inferences per second");
    // An ensemble has no queue: its steps have.
    if (!data.shares.length) write(part("wait"), `wait ${measure(data.queueMs)} ms`);
    write(part("compute"), `compute ${measure(data.computeMs)} ms`);
    const busy = data.lanes.reduce((sum, lane) => sum + lane.share, 0) / Math.max(1, data.lanes.length);
    write(part("busy"), `busy ${Math.round(busy * 100)}%`);
    write(part("done"), `${count(data.inferences)} done`);
    const failed = part("failed");
    write(failed, `${count(data.failed)} failed`);
    failed?.classList.toggle("nbt-f-t1", data.failed > 0);
    failed?.classList.toggle("nbt-f-muted", data.failed === 0);
    write(part("queue-now"), count(data.depths.at(-1) ?? 0));
    write(part("queue-top"), `0 to ${count(high)}`);
    const queue = part("queue-area");
    if (queue) {
      const drawnSteps = steps(data.ages, data.depths, high, span, plot(queue));
      queue.setAttribute("d", drawnSteps.area);
      part("queue-line")?.setAttribute("d", drawnSteps.line);
    }
    for (const lane of of_role("lane")) {
      const values = data.lanes[Number(lane.getAttribute("data-lane"))];
      if (values) lane.setAttribute("d", steps(data.ages, values.busy, 1, span, plot(lane)).area);
    }
    for (const text of of_role("lane-text")) {
      const values = data.lanes[Number(text.getAttribute("data-lane"))];
      if (!values) continue;
      const doing = values.batch ? `batch ${values.batch}` : "idle";
      write(text, `${Math.round(values.share * 100)}% · ${doing}`);
    }
    const marks = part("changes");
    if (marks) {
      const { x, y, width, height } = plot(marks);
      marks.setAttribute("d", data.changes.filter((age) => age <= span)
        .map((age) => `M${(x + (1 - age / span) * width).toFixed(1)} ${y}v${height}`).join(""));
    }
    of_role("share").forEach((bar, k) => {
      bar.setAttribute("width", (Number(bar.getAttribute("data-room")) * (data.shares[k] || 0)).toFixed(1));
    });
    of_role("share-text").forEach((text, k) => {
      write(text, data.shares[k] >= 0 ? `${Math.round(data.shares[k] * 100)}%` : "\u2013");
    });
    const most = Math.max(0, ...data.bins);
    write(part("bar-title"), `batch sizes ${data.recent ? "in this time" : "since load"}`);
    write(part("bar-top"), count(most));
    of_role("bar").forEach((bar, k) => {
      const height = (Number(bar.getAttribute("data-room")) * (data.bins[k] ?? 0)) / Math.max(1, most);
      bar.setAttribute("height", height.toFixed(1));
      bar.setAttribute("y", (Number(bar.getAttribute("data-base")) - height).toFixed(1));
    });
  };

  /** Where a strip stands, as Python laid it out. @param {Element} strip */
  const plot = (strip) => {
    const [x, y, width, height] = (strip.getAttribute("data-plot") ?? "").split(" ").map(Number);
    return { x, y, width, height };
  };

  const draw_rows = () => {
    data.forEach((one, i) => {
      const texts = [
        count(one.queued), count(one.executing), measure(one.rate), measure(one.queueMs),
        measure(one.computeMs), count(one.inferences), count(one.executions), count(one.failed),
      ];
      for (const [k, text] of texts.entries()) write(cells[i][k + 3], text);
    });
    // None moves under the pointer.
    if (!table.matches(":hover")) sortRows(table);
  };

  numbers.before(keepMenu(() => "watch", {
    svg: () => picture.querySelector("svg"),
    csv: () => {
      draw_rows();
      return tableRows(table);
    },
    cell: () => configurationCell(model, [selection.get().model, ...model.get("models").map((/** @type {Shown} */ one) => one.name)]),
  }));
  const stop = followScenes(model, [], root, build_all, draw);
  return () => {
    stop();
    selection.stop();
  };
}

export default widget(render);
