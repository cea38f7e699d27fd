/** @typedef {[number, string, [number, number, string, number][]]} Strip */
/** @typedef {{x: number, y: number, width: number, height: number, batch?: Batch, wait?: Wait, act?: () => void}} Hit */

const SLOT = 6;
const LANE = 24;
const STRIP = 18;
const GAP = 4;
const FOLDED = 18;
// The overview: all that the page has, with the stretch that is shown as a window; the axis stands beneath it.
const OVERVIEW = 26;
const HEAD = OVERVIEW + 24;
const PAUSE = 56;
// With more models than these, lanes fold to a row each, idle models to one line, and what is busy stands first.
const FEW = 8;
const ORDER_MS = 5000;
const SAY_TIMELINE_MS = 5000;

/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", "nbt-root nbt-timeline");
  const finding = make("div", "nbt-timeline-finding nbt-finding");
  const bar = make("div", "nbt-bar", "", { role: "toolbar", "aria-label": "zoom and pan" });
  const search = /** @type {HTMLInputElement} */ (make("input", "nbt-timeline-search"));
  const matches = make("span", "nbt-timeline-matches", "", { role: "status" });
  const legend = make("ul", "nbt-timeline-legend", "", { "aria-label": "why batches left" });
  const head = /** @type {HTMLCanvasElement} */ (make("canvas", "nbt-timeline-head", "", {
    role: "img", "aria-label": "All that is recorded, and the stretch that is shown",
  }));
  const scroll = make("div", "nbt-timeline-scroll");
  const canvas = /** @type {HTMLCanvasElement} */ (make("canvas", "nbt-timeline-lanes"));
  const panel = make("div", "nbt-timeline-panel", "", { "aria-live": "polite" });
  const life = make("div", "nbt-timeline-life", "", { "aria-live": "polite" });
  const said = make("div", "nbt-hidden-text", "", { role: "status" });
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "timeline");
  canvas.setAttribute(
    "aria-label",
    `Timeline of ${model.get("title")}: left and right go through the requests, plus and minus zoom, `
      + "shift with left and right pans, 0 shows all, F follows the newest, Enter selects the request, "
      + "S selects the stretch that is shown, Z zooms to the selection, P pins the model, Escape clears",
  );
  search.type = "search";
  search.placeholder = "name, failed, busy > 50%, id";
  search.setAttribute("aria-label", "search: part of a name, failed, busy > 50%, a request's number or id");
  scroll.append(canvas);
  root.append(finding, bar, legend, head, scroll, panel, life, said);
  el.append(root);
  const pen = rolePen(root);
  const { letters, box } = pen;
  const records = timelineRecords(model);
  const models = () => /** @type {Lanes[]} */ (model.get("models"));
  const marks = () => /** @type {Mark[]} */ (model.get("marks"));

  /** @type {Stretch | null} */
  let range = null; // null while it follows the newest
  /** @type {Hit[]} */
  let hits = [];
  /** @type {Wait | null} */
  let chosen = null;
  /** @type {Batch | null} */
  let chosen_batch = null;
  /** @type {number[]} */
  let rows = []; // of requests, a model's most so far: nothing jumps while it is live
  /** @type {{from: number, to: number} | null} */
  let brush = null;
  /** @type {{at: number, begin: number, end: number} | null} */
  let drag = null;
  let plot = { x: 0, width: 1, bottom: 0 };
  /** @type {Map<number, boolean>} */
  const unfolded = new Map(); // what a reader opened or folded; the rest follows the number of models
  /** @type {Set<number>} */
  const pinned = new Set();
  let idle_open = false;
  /** @type {number[]} */
  let order = [];
  let ordered = -Infinity;
  let legend_shown = "";
  let saying = 0;

  const consume = () => {
    if (!records.consume() || !(chosen?.open || chosen_batch?.open)) return;
    const same = (/** @type {Batch | Wait | null} */ one) => (/** @type {Batch | Wait} */ other) =>
      other.number === one?.number && other.model === one?.model;
    choose(records.waits.find(same(chosen)) ?? null, records.batches.find(same(chosen_batch)) ?? null);
  };

  /** The stretch that is shown. */
  const shown = () => range ?? records.newest();
  const searched = () => search.value.trim().toLowerCase();

  // -- drawing -----------------------------------------------------------------------------------

  /** Whether a model is shown: by the search, and by the model that is selected. @param {Part} part */
  const wanted = (part) => {
    const only = selection.get().model;
    return (!only || part.name === only || !models().some(({ name }) => name === only)) && fitsSearch(part, searched());
  };

  /** The models in the order in which they stand, and those that are folded into the last line. @param {Part[]} parts */
  const arranged = (parts) => {
    const many = parts.length > FEW;
    const now = performance.now();
    if (order.length !== parts.length || (many && !canvas.matches(":hover") && now - ordered > ORDER_MS)) {
      order = parts.map((part) => part.at);
      if (many) order.sort((a, b) => parts[b].busy - parts[a].busy || a - b);
      ordered = now;
    }
    const found = [...order].sort((a, b) => Number(pinned.has(b)) - Number(pinned.has(a)))
      .map((at) => parts[at]).filter(wanted);
    const idle = found.filter((part) => many && !part.batches.length && !part.waits.length && !pinned.has(part.at));
    return { standing: found.filter((part) => !idle.includes(part)), idle };
  };

  /** The selected stretch in ms, and whether any of it is in one that is drawn. @param {Stretch} [drawn] */
  const selected = (drawn) => {
    const { from_ns, to_ns } = selection.get();
    if (from_ns === undefined || to_ns === undefined) return null;
    const [begin, end] = [from_ns, to_ns].map((ns) => (ns - model.get("begin_ns")) / 1e6);
    return { begin, end, seen: !drawn || (end > drawn.begin && begin < drawn.end) };
  };

  /** Where a time stands in the plot that shows a stretch. @param {Stretch} stretch */
  const scale = ({ begin, end }) => (/** @type {number} */ ms) =>
    plot.x + ((Math.min(Math.max(ms, begin), end) - begin) / (end - begin)) * plot.width;

  /** Times and their places in the overview, in which a long pause is only as wide as its length in words. */
  let [times, places] = [[0, 1], [0, 1]];
  const over = (/** @type {number} */ ms) => along(ms, times, places);
  /** @param {Stretch} whole */
  const overview = (whole) => {
    const pauses = records.pauses(whole);
    const moving = whole.end - whole.begin - sum(pauses.map(({ begin, end }) => end - begin));
    const per_ms = (plot.width - pauses.length * PAUSE) / moving;
    [times, places] = [[whole.begin], [plot.x]];
    for (const { begin, end } of pauses) {
      const at = places[places.length - 1] + (begin - times[times.length - 1]) * per_ms;
      times.push(begin, end);
      places.push(at, at + PAUSE);
    }
    times.push(whole.end);
    places.push(plot.x + plot.width);
  };

  /** The overview with its window, and the axis. @param {number} wide @param {Stretch} now */
  const draw_head = (wide, now) => {
    pen.onto(head, wide, HEAD);
    const whole = records.extent();
    overview(whole);
    const bins = new Float64Array(Math.ceil(plot.width / 2) + 1);
    for (const batch of records.batches) bins[Math.floor((over(batch.begin) - plot.x) / 2)] += batch.rows;
    const most = Math.max(1, ...bins);
    letters("all", plot.x - 6, 17, "muted", "right");
    box(plot.x, 2, plot.width, OVERVIEW - 4, "panel");
    bins.forEach((many, i) => {
      const tall = (OVERVIEW - 6) * (many / most);
      if (many) box(plot.x + i * 2, OVERVIEW - 2 - tall, 2, tall, "muted");
    });
    for (let i = 1; i < times.length - 1; i += 2) {
      box(places[i], 2, PAUSE, OVERVIEW - 4, "bg");
      letters(lasting(times[i + 1] - times[i]), places[i] + PAUSE / 2, 17, "muted", "center");
    }
    const window_ = over(now.begin);
    box(window_, 2, Math.max(3, over(now.end) - window_), OVERVIEW - 4, "s0", 0.2, true);
    const picked = selected(whole);
    if (picked?.seen) box(over(picked.begin), 2, Math.max(2, over(picked.end) - over(picked.begin)), OVERVIEW - 4, "s1", 0.5, true);
    // Where no label of a tick comes.
    letters("ms", 6, HEAD - 7, "muted");
    for (const { tick, words } of timeTicks(now, plot.width)) {
      const x = scale(now)(tick);
      // A label stands at its line, or not at all.
      if (x + pen.width(words) / 2 < wide) letters(words, x, HEAD - 7, "muted", "center");
      box(x, HEAD - 4, 1, 4, "line");
    }
  };

  /** @param {Part} part @param {number} top @param {boolean} open */
  const draw_name = (part, top, open) => {
    const words = `${open ? "▾" : "▸"} ${pinned.has(part.at) ? "◆ " : ""}${part.name}`;
    letters(words, 6, top + 13, "fg", "left", open, open ? plot.x + plot.width - 10 : plot.x - 12);
    const act = () => {
      unfolded.set(part.at, !open);
      rows[part.at] = 0;
    };
    hits.push({ x: 0, y: top, width: open ? plot.x * 2 : plot.x - 6, height: FOLDED, act });
  };
  /** The name of a lane or a strip. @param {string} name @param {number} y */
  const draw_label = (name, y) => letters(name, plot.x - 6, y, "muted", "right", false, plot.x - 12);

  /** @param {Part} part @param {number} top @param {Stretch} now */
  const draw_folded = (part, top, now) => {
    draw_name(part, top, false);
    box(plot.x, top + 2, plot.width, FOLDED - 4, "panel");
    const x = scale(now);
    let last = -1;
    for (const batch of part.batches) {
      const from = x(batch.begin);
      const to = Math.max(from + 1, x(batch.end));
      // What ends in a pixel that is drawn already adds nothing.
      if (to <= last && !batch.failed) continue;
      last = to;
      const role = batch.failed ? "s1" : (marks()[batch.mark]?.[1] ?? "s5");
      box(from, top + 4, to - from, FOLDED - 8, role, searched() === "failed" && !batch.failed ? 0.15 : 0.6);
      hits.push({ x: from, y: top, width: to - from, height: FOLDED, batch });
    }
  };

  /** @param {Batch} batch @param {number} top @param {Stretch} now */
  const draw_batch = (batch, top, now) => {
    const [letter, role, , lines] = marks()[batch.mark] ?? ["C", "muted", "", []];
    const x = scale(now);
    const from = x(batch.begin);
    const width = Math.max(2, x(batch.end) - from);
    const faint = searched() === "failed" && !batch.failed ? 0.3 : 1;
    box(from, top + 2, width, LANE - 4, role, (chosen_batch === batch ? 0.7 : 0.4) * faint, true);
    if (width > 6) pen.texture(from, top + 2, width, LANE - 4, role, lines);
    if (batch.failed) box(from, top + LANE - 4, width, 3, "s1");
    let words = width > 34 ? `${letter} ${batch.rows}` : letter;
    if (batch.open && batch.end <= now.end) {
      pen.ragged(from + width, top + 2, LANE - 4, role);
      const running = `${letter} ${batch.rows} · running ${lasting(batch.end - batch.begin)}`;
      if (pen.width(running, true) + 8 < width) words = running;
    }
    if (width > 12) {
      const room = pen.width(words, true) + 2;
      if (lines.length) box(from + (width - room) / 2, top + 6, room, 13, "bg", 0.75);
      letters(words, from + width / 2, top + 16, "fg", "center", true);
    }
    hits.push({ x: from, y: top, width, height: LANE, batch });
  };

  /** @param {Part} part @param {number} y @param {Stretch} now @param {ReturnType<typeof placed>} slots */
  const draw_open = (part, y, now, { found, beyond }) => {
    draw_name(part, y, true);
    const x = scale(now);
    const lanes_top = y + 20 + (rows[part.at] ? rows[part.at] * SLOT + GAP + 14 : 0);
    for (const { one: wait, row } of found) {
      const from = x(wait.begin);
      const width = Math.max(2, x(wait.left) - from);
      const top = y + 20 + row * SLOT;
      const is_chosen = chosen === wait;
      const role = wait.failed ? "s1" : "s0";
      const faint = searched() === "failed" && !wait.failed ? 0.15 : 1;
      box(from, top, width, is_chosen ? 5 : 4, role, faint);
      if (wait.open && wait.left >= wait.end && wait.end <= now.end) pen.ragged(from + width, top, 4, "s0");
      if (wait.lane >= 0 && wait.left <= now.end) {
        const lane = lanes_top + wait.lane * (LANE + GAP);
        box(from + width - 1, top + 2, is_chosen ? 2 : 1, lane - top - 2, role, is_chosen ? 1 : 0.35 * faint);
      }
      hits.push({ x: from, y: top - 1, width, height: SLOT, wait });
    }
    if (beyond) letters(`and ${count(beyond)} more at the same time`, plot.x, lanes_top - 5, "muted");
    part.lanes.forEach((name, lane) => {
      const top = lanes_top + lane * (LANE + GAP);
      draw_label(name, top + 16);
      box(plot.x, top, plot.width, LANE, "panel");
    });
    for (const batch of part.batches) draw_batch(batch, lanes_top + batch.lane * (LANE + GAP), now);
    let top = lanes_top + part.lanes.length * (LANE + GAP);
    for (const [, name, spans] of strips_of(part.at)) {
      draw_label(name, top + 13);
      box(plot.x, top + STRIP - 1, plot.width, 1, "line");
      for (const [from, to, label, level] of spans) {
        if (to <= now.begin || from >= now.end) continue;
        const width = Math.max(1, x(to) - x(from));
        const height = STRIP * Math.min(1, level);
        box(x(from), top + STRIP - height, width, height, "s5", 0.4, true);
        if (pen.width(label) + 6 < width) letters(label, x(from) + width / 2, top + 13, "fg", "center");
      }
      top += STRIP + GAP;
    }
  };
  const strips_of = (/** @type {number} */ at) => /** @type {Strip[]} */ (model.get("strips")).filter(([owner]) => owner === at);

  const draw = () => {
    const all = models();
    const wide = Math.max(320, Math.round(root.clientWidth - 8));
    const now = shown();
    const parts = records.parts(now);
    const { standing, idle } = arranged(parts);
    const folded = (/** @type {number} */ at) => !(unfolded.get(at) ?? all.length <= FEW);
    const slots = new Map(standing.filter(({ at }) => !folded(at)).map((part) => [
      part.at, placed(part.waits.filter((w) => w.left > now.begin)),
    ]));
    rows = all.map((_, at) => Math.max(range ? 0 : (rows[at] ?? 0), slots.get(at)?.rows ?? 0));
    const heights = standing.map(({ at, lanes }) => (folded(at)
      ? FOLDED
      : 28 + (rows[at] ? rows[at] * SLOT + GAP + 14 : 0) + lanes.length * (LANE + GAP) + strips_of(at).length * (STRIP + GAP)));
    const idle_rows = idle.length ? 1 + (idle_open ? idle.length : 0) : 0;
    const tall = Math.max(40, sum(heights) + idle_rows * FOLDED + 12);
    const gutter = Math.min(190, Math.max(110, wide * 0.18));
    plot = { x: gutter, width: wide - gutter - 10, bottom: tall - 4 };
    draw_head(wide, now);
    pen.onto(canvas, wide, tall);
    const x = scale(now);
    for (const { tick } of timeTicks(now, plot.width)) box(x(tick), 2, 1, plot.bottom - 2, "line", 0.6);
    hits = [];
    let y = 4;
    standing.forEach((part, place_of) => {
      const own = slots.get(part.at);
      if (own) draw_open(part, y, now, own);
      else draw_folded(part, y, now);
      y += heights[place_of];
    });
    if (idle.length) {
      const words = `${idle_open ? "▾" : "▸"} ${counted(idle.length, "idle model")}: ${idle.map(({ name }) => name).join(", ")}`;
      letters(words, 6, y + 13, "muted", "left", false, wide - 20);
      const act = () => {
        idle_open = !idle_open;
      };
      hits.push({ x: 0, y, width: wide, height: FOLDED, act });
      if (idle_open) idle.forEach((part, i) => { draw_folded(part, y + (i + 1) * FOLDED, now); });
    }
    if (!standing.length && !idle.length) letters(search.value ? "nothing fits the search" : "no model is shown", gutter, 20, "muted");
    const picked = selected(now);
    if (picked?.seen) box(x(picked.begin), 2, Math.max(2, x(picked.end) - x(picked.begin)), plot.bottom - 2, "s0", 0.12, true);
    if (brush) box(Math.min(brush.from, brush.to), 2, Math.abs(brush.to - brush.from), plot.bottom - 2, "s0", 0.2, true);
    write(matches, searched() && !/^\d+$/.test(searched())
      ? `${count(standing.length + idle.length)} of ${counted(all.length, "model")}` : "");
    tell(parts, now);
    follows.setAttribute("aria-pressed", String(!range));
    unfold.hidden = all.length <= 1;
  };

  /** The sentence and the legend. @param {Part[]} parts @param {Stretch} now */
  const tell = (parts, now) => {
    const sentence = timelineSentence(model.get("title"), parts, marks(), now.end - now.begin, records);
    write(finding, sentence);
    // A screen reader hears what has stood for a while: at first nothing has come yet.
    if (!saying) saying = setTimeout(() => {
      saying = 0;
      write(said, finding.textContent ?? "");
    }, SAY_TIMELINE_MS);
    const seen = [...new Set(parts.flatMap((part) => part.batches.map((b) => b.mark)))].sort((a, b) => a - b);
    if (seen.join() === legend_shown) return;
    legend_shown = seen.join();
    legend.replaceChildren(...markItems(seen.map((at) => marks()[at])));
  };

  /** The panel about what is selected: only when the selection or the data in it changes. */
  const draw_panel = () => {
    const { model: only, request } = selection.get();
    const picked = selected();
    panel.hidden = !picked && !only;
    panel.replaceChildren();
    if (panel.hidden) return;
    const actions = make("div", "nbt-bar");
    if (picked) {
      const parts = records.parts(picked).filter((part) => (part.batches.length || part.waits.length) && wanted(part));
      const total = sum(parts.map((part) => part.batches.length));
      panel.append(
        make("div", "nbt-timeline-selected nbt-finding",
          `${request ? `request ${request}` : "selected"}: ${measure(picked.end - picked.begin)} ms, ${counted(total, "batch", "batches")}`
            + `${records.left_out ? " (a sample: some came too fast to be drawn)" : ""}`),
        ...stretchTable(parts, marks()),
      );
      actions.append(makeButton("Zoom to it", to_selection));
    }
    if (only) panel.append(make("div", "", `only ${only} is shown`));
    actions.append(makeButton("Clear", () => selection.put({})));
    panel.append(actions);
  };

  // -- what a reader does ------------------------------------------------------------------------

  /** @param {number} begin @param {number} end */
  const show = (begin, end) => {
    const width = Math.max(end - begin, 0.01);
    const middle = (begin + end) / 2;
    range = { begin: middle - width / 2, end: middle + width / 2 };
    draw();
  };
  /** @param {number} factor @param {number} [at] a time that stays where it is */
  const zoom = (factor, at) => {
    const { begin, end } = shown();
    const still = at ?? (begin + end) / 2;
    show(still - (still - begin) * factor, still + (end - still) * factor);
  };
  /** @param {number} part of the width */
  const pan = (part) => {
    const { begin, end } = shown();
    show(begin + (end - begin) * part, end + (end - begin) * part);
  };
  const all_of_it = () => {
    const { begin, end } = records.extent();
    show(begin, end);
  };
  const newest = () => {
    range = null;
    draw();
  };

  /** @param {Wait | null} wait @param {Batch | null} batch */
  const choose = (wait, batch) => {
    chosen = wait;
    chosen_batch = batch ?? (wait && wait.lane >= 0
      ? records.batches.find((b) => b.model === wait.model && b.lane === wait.lane && b.begin === wait.left) ?? null
      : null);
    write(life, lifeOf(chosen, chosen_batch, marks(), models()));
  };

  /** @param {number} by */
  const step_to = (by) => {
    const { begin, end } = shown();
    const { waits } = records;
    const among = waits.filter((w) => w.end > begin && w.begin < end);
    const at = chosen ? waits.indexOf(chosen) + by : waits.indexOf(by > 0 ? among[0] : among[among.length - 1]);
    const wait = waits[Math.min(Math.max(at, 0), waits.length - 1)];
    if (!wait) return;
    choose(wait, null);
    const { begin: from, left } = wait;
    if (left < begin || from > end) show(from - (end - begin) / 2, from + (end - begin) / 2);
    else if (!range) range = { begin, end };
    draw();
  };

  const to_selection = () => {
    const picked = selected();
    if (!picked) return;
    const room = (picked.end - picked.begin) * 0.1;
    show(picked.begin - room, picked.end + room);
  };
  /** @param {number} from in ms @param {number} to @param {number} [request] */
  const select = (from, to, request) => {
    const { model: only } = selection.get();
    const [from_ns, to_ns] = [from, to].map((ms) => Math.round(model.get("begin_ns") + ms * 1e6));
    selection.put({ ...(only ? { model: only } : {}), from_ns, to_ns, ...(request ? { request } : {}) });
  };
  /** @param {Wait | null} wait */
  const select_request = (wait) => {
    if (wait) select(wait.begin, wait.end, wait.number);
  };
  /** The kernel knows ids, and more requests than the page. @param {string} text */
  const find = (text) => {
    const known = records.waits.find((wait) => String(wait.number) === text);
    if (known) select_request(known);
    else ask(model, { kind: "find", text }, ({ found }) => write(matches, found ? "" : `no request ${text} is recorded`));
  };
  const onSelection = () => {
    const { request } = selection.get();
    const wait = records.waits.find((one) => one.number === request);
    if (request && wait) {
      choose(wait, null);
      unfolded.set(wait.model, true);
    }
    const { begin, end } = shown();
    const picked = selected({ begin, end });
    // What is out of sight, or too short to be seen, is shown.
    if (picked && (!picked.seen || (request && picked.end - picked.begin < (end - begin) / 50))) to_selection();
    else if (picked && !range) range = { begin, end };
    draw_panel();
    draw();
  };
  const selection = shareSelection(model, onSelection);
  const onLink = (/** @type {MouseEvent} */ event) => {
    const link = /** @type {Element} */ (event.target)?.closest?.(`a[href^="#nbt-${model.get("kernel")}-"]`);
    if (!link || !root.isConnected) return;
    event.preventDefault();
    find(/** @type {string} */ (link.getAttribute("href")?.split("-").pop()));
    root.scrollIntoView({ block: "nearest" });
  };

  /** @param {MouseEvent} event */
  const place = (event) => {
    const area = canvas.getBoundingClientRect();
    return { x: event.clientX - area.left, y: event.clientY - area.top };
  };
  /** @param {number} at */
  const time = (at) => {
    const { begin, end } = shown();
    return begin + ((at - plot.x) / plot.width) * (end - begin);
  };
  /** What is drawn at the place of the pointer. @param {MouseEvent} event */
  const under = (event) => {
    const at = place(event);
    return hits.findLast(
      (one) => at.x >= one.x - 2 && at.x <= one.x + one.width + 2 && at.y >= one.y && at.y <= one.y + one.height,
    );
  };
  canvas.addEventListener("pointermove", (event) => {
    const at = place(event);
    if (brush) {
      brush.to = at.x;
      draw();
    } else if (drag) {
      const by = ((drag.at - at.x) / plot.width) * (drag.end - drag.begin);
      show(drag.begin + by, drag.end + by);
    } else {
      const hit = under(event);
      canvas.style.cursor = hit?.act ? "pointer" : "crosshair";
      if (!hit || hit.act || (hit.wait === chosen && !hit.batch)) return;
      choose(hit.wait ?? null, hit.batch ?? null);
      draw();
    }
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    const at = place(event);
    canvas.setPointerCapture(event.pointerId);
    if (event.shiftKey) drag = { at: at.x, ...shown() };
    else brush = { from: at.x, to: at.x };
  });
  canvas.addEventListener("pointerup", (event) => {
    const done = brush;
    brush = drag = null;
    if (done && Math.abs(done.to - done.from) > 5) {
      select(time(Math.min(done.from, done.to)), time(Math.max(done.from, done.to)));
    } else if (done) {
      const hit = under(event);
      if (hit?.act) hit.act();
      else if (hit?.wait) select_request(hit.wait);
    }
    draw();
  });
  canvas.addEventListener("wheel", (event) => {
    // Elsewhere the wheel scrolls the page.
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 1000);
    else zoom(1.0015 ** event.deltaY, time(place(event).x));
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => {
    const hit = under(event);
    pin(hit?.batch?.model ?? hit?.wait?.model);
  });
  onKeys(canvas, ({ shiftKey }) => ({
    ArrowLeft: () => (shiftKey ? pan(-0.25) : step_to(-1)),
    ArrowRight: () => (shiftKey ? pan(0.25) : step_to(1)),
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    0: all_of_it,
    f: newest,
    Home: () => {
      const { begin, end } = shown();
      const first = records.extent().begin;
      show(first, first + end - begin);
    },
    End: newest,
    Enter: () => select_request(chosen),
    s: () => select(shown().begin, shown().end),
    z: to_selection,
    p: () => pin(chosen?.model ?? chosen_batch?.model),
    Escape: () => {
      choose(null, null);
      selection.put({});
      draw();
    },
  }));
  /** The window goes where the pointer is in the overview. @param {PointerEvent} event */
  const onWindow = (event) => {
    if (event.type === "pointerdown" && !event.button) head.setPointerCapture(event.pointerId);
    if (!head.hasPointerCapture(event.pointerId)) return;
    const { begin, end } = shown();
    const middle = along(event.clientX - head.getBoundingClientRect().left, places, times);
    show(middle - (end - begin) / 2, middle + (end - begin) / 2);
  };
  for (const kind of /** @type {("pointerdown" | "pointermove" | "pointerup")[]} */ (["pointerdown", "pointermove", "pointerup"])) {
    head.addEventListener(kind, onWindow);
  }

  /** @param {number | undefined} at the place of a model: it stays at the top */
  const pin = (at) => {
    if (at === undefined) return;
    if (!pinned.delete(at)) pinned.add(at);
    draw();
  };

  const follows = makeButton("Newest", newest, "follow the newest");
  const unfold = makeButton("Fold", () => {
    const open = models().some((_, at) => unfolded.get(at) ?? models().length <= FEW);
    for (const at of models().keys()) unfolded.set(at, !open);
    rows = [];
    draw();
  }, "fold or unfold all models");
  /** The requests of the selection, or else of what is shown. */
  const csv = () => [
    ["model", "request", "arrival_ms", "left_ms", "answered_ms", "rows", "instance", "failed"],
    ...records.parts(selected() ?? shown()).filter(wanted).flatMap((part) => part.waits.map((wait) => [
      part.name, wait.number, wait.begin, wait.left, wait.open ? "" : wait.end, wait.rows, part.lanes[wait.lane] ?? "", wait.failed,
    ].map(String))),
  ];
  bar.append(
    makeButton("+", () => zoom(0.5), "zoom in"),
    makeButton("−", () => zoom(2), "zoom out"),
    makeButton("◂", () => pan(-0.25), "earlier"),
    makeButton("▸", () => pan(0.25), "later"),
    makeButton("All", all_of_it, "all that is recorded"),
    follows, unfold, search, matches,
    keepMenu(() => `${model.get("title")}-timeline`, {
      svg: () => pen.picture(draw, canvas.clientWidth),
      csv,
      cell: () => configurationCell(model, [selection.get().model, model.get("title"), ...models().map(({ name }) => name)]),
      more: {
        "trace for Perfetto": () => ask(model, { kind: "trace" }, ({ name }, [trace]) => {
          download(name, new Blob([/** @type {any} */ (trace)], { type: "application/json" }));
        }),
      },
    }),
  );
  search.addEventListener("input", () => draw());
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && search.value.trim()) find(search.value.trim());
    if (event.key === "Escape") {
      search.value = "";
      draw();
    }
    event.stopPropagation();
  });

  const redraw = () => {
    pen.theme();
    draw();
  };
  const sizes = new ResizeObserver(() => root.isConnected && redraw());
  sizes.observe(root);
  document.addEventListener("click", onLink);
  model.on("change:frame", consume);
  consume();
  const stop = follow(model, ["models", "strips", "resting"], redraw, root);
  if (Object.keys(selection.get()).length) onSelection();
  return () => {
    stop();
    selection.stop();
    document.removeEventListener("click", onLink);
    sizes.disconnect();
    model.off("change:frame", consume);
    root.remove();
  };
}

export default widget(render);
