/** @typedef {{model: number, lane: number, begin: number, end: number, rows: number, requests: number,
 *   mark: number, wait: number, failed: boolean, number: number, open: boolean}} Batch */
/** @typedef {{model: number, lane: number, begin: number, left: number, end: number, rows: number,
 *   failed: boolean, number: number, open: boolean}} Wait */
/** @typedef {{name: string, lanes: string[], records: boolean}} Lanes */
/** @typedef {[number, string, [number, number, string, number][]]} Strip */
/** @typedef {{x: number, y: number, width: number, height: number, batch?: Batch, wait?: Wait, act?: () => void}} Hit */
/** @typedef {[string, string, string, [number, number, number, number][]]} Mark letter, role, words, pattern */
/** What one model has in the stretch that is shown.
 * @typedef {{at: number, batches: Batch[], waits: Wait[], busy: number, failed: number}} Part */

// What a page keeps: some minutes of a busy server, and some 10 MB.
const MOST_BATCHES = 6000;
const MOST_WAITS = 12000;
// The newest batches that are shown while it follows: each still has its letter.
const SHOWN = 40;
const MOST_SLOTS = 24;
const SLOT = 6;
const LANE = 24;
const STRIP = 18;
const GAP = 4;
const FOLDED = 18;
const FONT = 12;
// The overview: all that the page has, with the stretch that is shown as a window; the axis stands beneath it.
const OVERVIEW = 26;
const HEAD = OVERVIEW + 24;
// With more models than these, lanes fold to a row each, idle models to one line, and what is busy stands first.
const FEW = 8;
const ORDER_MS = 5000;
const MOST_ROWS = 12; // of a selection's table
const ROLES = ["s0", "s1", "s2", "s3", "s4", "s5", "fg", "bg", "muted", "line", "panel"];
const SAY_TIMELINE_MS = 5000;

/** The next 1, 2 or 5 times a power of ten. @param {number} value */
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-6)));
  return ([1, 2, 5, 10].find((m) => m * power >= value * 0.9999) ?? 10) * power;
}

/** @param {number} number @param {string} thing */
function some(number, thing) {
  return `${count(number)} ${thing}${number === 1 ? "" : "s"}`;
}

/** A time in a unit that fits it. @param {number} ms */
function lasting(ms) {
  if (ms < 1000) return `${measure(ms)} ms`;
  return `${ms < 10000 ? measure(ms / 1000) : count(ms / 1000)} s`;
}

/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", "nbt-root nbt-timeline");
  const finding = make("div", "nbt-timeline-finding");
  const bar = make("div", "nbt-timeline-bar");
  const search = /** @type {HTMLInputElement} */ (make("input", "nbt-timeline-search"));
  const matches = make("span", "nbt-timeline-matches");
  const legend = make("ul", "nbt-timeline-legend");
  const head = /** @type {HTMLCanvasElement} */ (make("canvas", "nbt-timeline-head"));
  const scroll = make("div", "nbt-timeline-scroll");
  const canvas = /** @type {HTMLCanvasElement} */ (make("canvas", "nbt-timeline-lanes"));
  const panel = make("div", "nbt-timeline-panel");
  const life = make("div", "nbt-timeline-life");
  const said = make("div", "nbt-hidden-text");
  const probe = make("span", "nbt-hidden-text");
  bar.setAttribute("role", "toolbar");
  bar.setAttribute("aria-label", "zoom and pan");
  legend.setAttribute("aria-label", "why batches left");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "timeline");
  canvas.setAttribute(
    "aria-label",
    `Timeline of ${model.get("title")}: left and right go through the requests, plus and minus zoom, `
      + "shift with left and right pans, 0 shows all, F follows the newest, Enter selects the request, "
      + "S selects the stretch that is shown, Z zooms to the selection, P pins the model, Escape clears",
  );
  head.setAttribute("role", "img");
  head.setAttribute("aria-label", "All that is recorded, and the stretch that is shown");
  search.type = "search";
  search.placeholder = "name, failed, busy > 50%, id";
  search.setAttribute("aria-label", "search: part of a name, failed, busy > 50%, a request's number or id");
  matches.setAttribute("role", "status");
  panel.setAttribute("aria-live", "polite");
  life.setAttribute("aria-live", "polite");
  said.setAttribute("role", "status");
  scroll.append(canvas);
  root.append(finding, bar, legend, head, scroll, panel, life, said, probe);
  el.append(root);
  const lanes_pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const head_pen = /** @type {CanvasRenderingContext2D} */ (head.getContext("2d"));
  let pen = lanes_pen;
  let family = "sans-serif";
  /** @type {Map<string, string>} */
  const cuts = new Map();

  /** @type {Batch[]} */
  let batches = [];
  /** @type {Wait[]} */
  let waits = [];
  let left_out = 0;
  let latest = -Infinity; // when the newest frame was sent, while something is in flight
  /** @type {{begin: number, end: number} | null} */
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
  /** @type {Record<string, string>} */
  const colours = {};
  let window_drag = false;
  let plot = { x: 0, width: 1, bottom: 0 };
  /** @type {Map<number, boolean>} */
  const unfolded = new Map(); // what a reader opened or folded; the rest follows the number of models
  /** @type {Set<number>} */
  const pinned = new Set();
  let idle_open = false;
  /** @type {number[]} */
  let order = [];
  let ordered = -Infinity;
  let hovering = false;
  let legend_shown = "";
  let spoken = -Infinity;
  let last_frame = -1;

  // -- what the kernel sends ---------------------------------------------------------------------

  // Each frame adds to what was sent before, so none is left out, also where none is drawn.
  const consume = () => {
    const next = reader(model.get("frame"));
    if (!next.left()) return;
    const frame = next();
    const whole = next();
    const [many_batches, many_waits, more, now, open_batches, open_waits] = Array.from({ length: 6 }, next);
    if (frame === last_frame) return;
    last_frame = frame;
    if (whole) {
      batches = [];
      waits = [];
    }
    // What is in flight is sent anew in each frame.
    batches = batches.filter((b) => !b.open);
    waits = waits.filter((w) => !w.open);
    left_out = more;
    latest = open_batches + open_waits ? now : -Infinity;
    for (let i = 0; i < many_batches; i++) {
      batches.push({
        model: next(), lane: next(), begin: next(), end: next(), rows: next(), requests: next(),
        mark: next(), wait: next(), failed: next() > 0, number: next(), open: i >= many_batches - open_batches,
      });
    }
    for (let i = 0; i < many_waits; i++) {
      waits.push({
        model: next(), lane: next(), begin: next(), left: next(), end: next(), rows: next(),
        failed: next() > 0, number: next(), open: i >= many_waits - open_waits,
      });
    }
    batches.sort((a, b) => a.begin - b.begin);
    waits.sort((a, b) => a.begin - b.begin);
    batches = batches.slice(-MOST_BATCHES);
    waits = waits.slice(-MOST_WAITS);
    if (chosen?.open || chosen_batch?.open) {
      const [wait, batch] = [chosen, chosen_batch];
      choose(
        waits.find((w) => w.number === wait?.number && w.model === wait?.model) ?? null,
        batches.find((b) => b.number === batch?.number && b.model === batch?.model) ?? null,
      );
    }
  };

  const extent = () => {
    let begin = Infinity;
    let end = latest;
    for (const one of batches) {
      begin = Math.min(begin, one.begin - one.wait);
      end = Math.max(end, one.end);
    }
    for (const one of waits) {
      begin = Math.min(begin, one.begin);
      end = Math.max(end, one.end);
    }
    return end > begin ? { begin, end } : { begin: 0, end: Math.max(1, model.get("span_ms")) };
  };

  /** The stretch that is shown. */
  const shown = () => {
    if (range) return range;
    const whole = extent();
    const newest = batches.slice(-SHOWN);
    const asked = /** @type {number} */ (model.get("asked_ms"));
    if (asked) return { begin: whole.end - asked, end: whole.end };
    const begin = newest.length ? Math.min(...newest.map((b) => b.begin - b.wait)) : whole.begin;
    const width = Math.max(whole.end - begin, 1e-3);
    // While it moves the scale changes in steps, else it would never stand still.
    return model.get("resting")
      ? { begin, end: whole.end }
      : { begin: whole.end - rounded(width), end: whole.end };
  };

  // -- drawing -----------------------------------------------------------------------------------

  const read_colours = () => {
    for (const role of ROLES) {
      probe.style.color = `var(--nbt-${role})`;
      colours[role] = getComputedStyle(probe).color;
    }
    family = getComputedStyle(root).fontFamily;
    cuts.clear();
  };

  /** A text cut to its room; the names of lanes differ at their ends. It is kept: measuring costs more than drawing.
   * @param {string} text @param {boolean} keep_end @param {number} room @param {boolean} bold */
  const cut = (text, keep_end, room, bold) => {
    const key = `${keep_end} ${Math.round(room)} ${bold} ${text}`;
    let words = cuts.get(key);
    if (words === undefined) {
      let [least, most] = [Math.min(3, text.length), text.length];
      const shortened = (/** @type {number} */ many) =>
        many === text.length ? text : keep_end ? `…${text.slice(-many)}` : `${text.slice(0, many)}…`;
      while (least < most) {
        const middle = Math.ceil((least + most) / 2);
        if (pen.measureText(shortened(middle)).width > room) most = middle - 1;
        else least = middle;
      }
      words = shortened(least);
      if (cuts.size > 1000) cuts.clear();
      cuts.set(key, words);
    }
    return words;
  };

  /** @param {string} text @param {number} x @param {number} y @param {string} role
   * @param {CanvasTextAlign} [align] @param {boolean} [bold] @param {number} [room] */
  const letters = (text, x, y, role, align = "left", bold = false, room = Infinity) => {
    pen.font = `${bold ? "600 " : ""}${FONT}px ${family}`;
    pen.textAlign = align;
    pen.fillStyle = colours[role];
    pen.fillText(room < Infinity ? cut(text, align === "right", room, bold) : text, x, y);
  };

  /** @param {number} x @param {number} y @param {number} width @param {number} height
   * @param {string} role @param {number} [alpha] @param {boolean} [outlined] */
  const box = (x, y, width, height, role, alpha = 1, outlined = false) => {
    pen.globalAlpha = alpha;
    pen.fillStyle = colours[role];
    pen.fillRect(x, y, width, height);
    pen.globalAlpha = 1;
    if (outlined) {
      pen.strokeStyle = colours[role];
      pen.lineWidth = 1;
      pen.strokeRect(x + 0.5, y + 0.5, Math.max(0, width - 1), height - 1);
    }
  };

  /** The lines of a mark's pattern, as Python draws them.
   * @param {number} x @param {number} y @param {number} width @param {number} height @param {Mark} mark */
  const texture = (x, y, width, height, [, role, , lines]) => {
    pen.strokeStyle = colours[role];
    pen.globalAlpha = 0.8;
    for (const [at, thick, on, off] of lines) {
      pen.setLineDash(off ? [on, off] : []);
      pen.lineWidth = thick * height;
      pen.beginPath();
      pen.moveTo(x, y + at * height);
      pen.lineTo(x + width, y + at * height);
      pen.stroke();
    }
    pen.setLineDash([]);
    pen.globalAlpha = 1;
  };

  /** The right edge of what goes on: teeth, which need no colour.
   * @param {number} x @param {number} y @param {number} height @param {string} role */
  const ragged = (x, y, height, role) => {
    const teeth = Math.max(1, Math.round(height / 4));
    pen.fillStyle = colours[role];
    pen.beginPath();
    pen.moveTo(x, y);
    for (let i = 0; i < teeth; i++) {
      pen.lineTo(x + 3, y + ((i + 0.5) * height) / teeth);
      pen.lineTo(x, y + ((i + 1) * height) / teeth);
    }
    pen.fill();
  };

  /** Give each request of a model the first free row; those beyond the last row are only counted.
   * @param {Wait[]} those */
  const placed = (those) => {
    /** @type {number[]} */
    const ends = [];
    const found = [];
    let beyond = 0;
    for (const one of those) {
      let row = ends.findIndex((end) => end <= one.begin);
      if (row < 0) row = ends.length;
      if (row >= MOST_SLOTS) {
        beyond += 1;
        continue;
      }
      ends[row] = Math.max(one.left, one.begin);
      found.push({ one, row });
    }
    return { found, rows: ends.length, beyond };
  };

  /** What each model has between two times. @param {number} begin @param {number} end @returns {Part[]} */
  const parts_of = (begin, end) => {
    const all = /** @type {Lanes[]} */ (model.get("models"));
    /** @type {Part[]} */
    const found = all.map((_, at) => ({ at, batches: [], waits: [], busy: 0, failed: 0 }));
    for (const batch of batches) {
      const part = found[batch.model];
      if (!part || batch.end <= begin || batch.begin >= end) continue;
      part.batches.push(batch);
      part.busy += Math.min(batch.end, end) - Math.max(batch.begin, begin);
      if (batch.failed) part.failed += 1;
    }
    for (const wait of waits) {
      const part = found[wait.model];
      if (!part || wait.end <= begin || wait.begin >= end) continue;
      part.waits.push(wait);
      if (wait.failed) part.failed += 1;
    }
    for (const part of found) part.busy /= (end - begin) * Math.max(1, all[part.at].lanes.length);
    return found;
  };

  /** Whether a model is shown: by the search, and by the model that is selected. @param {Part} part */
  const wanted = (part) => {
    const one = /** @type {Lanes[]} */ (model.get("models"))[part.at];
    const only = selection.get().model;
    if (only && one.name !== only && model.get("models").some((/** @type {Lanes} */ each) => each.name === only)) return false;
    const text = search.value.trim().toLowerCase();
    const share = text.match(/^busy\s*([<>])\s*(\d+(?:\.\d+)?)\s*%?$/);
    if (share) return share[1] === ">" ? part.busy * 100 > Number(share[2]) : part.busy * 100 < Number(share[2]);
    if (text === "failed") return part.failed > 0;
    // A number or an id is looked up with Enter; until then nothing hides.
    return !text || /^\d+$/.test(text) || [one.name, ...one.lanes].some((name) => name.toLowerCase().includes(text));
  };

  /** The models in the order in which they stand, and those that are folded into the last line.
   * @param {Part[]} parts */
  const arranged = (parts) => {
    const many = parts.length > FEW;
    const now = performance.now();
    if (order.length !== parts.length || (many && !hovering && now - ordered > ORDER_MS)) {
      order = parts.map((part) => part.at);
      if (many) order.sort((a, b) => parts[b].busy - parts[a].busy || a - b);
      ordered = now;
    }
    const shown = [...order].sort((a, b) => Number(pinned.has(b)) - Number(pinned.has(a)))
      .map((at) => parts[at]).filter(wanted);
    const idle = many ? shown.filter((part) => !part.batches.length && !part.waits.length && !pinned.has(part.at)) : [];
    return { shown: shown.filter((part) => !idle.includes(part)), idle };
  };

  /** @param {HTMLCanvasElement} on @param {CanvasRenderingContext2D} with_ @param {number} wide @param {number} tall */
  const sized = (on, with_, wide, tall) => {
    const ratio = window.devicePixelRatio || 1;
    if (on.width !== Math.round(wide * ratio) || on.height !== Math.round(tall * ratio)) {
      on.width = Math.round(wide * ratio);
      on.height = Math.round(tall * ratio);
      on.style.width = `${wide}px`;
      on.style.height = `${tall}px`;
    }
    pen = with_;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, tall);
  };

  /** The selected stretch in ms, cut to one that is drawn. @param {number} begin @param {number} end */
  const stretch = (begin, end) => {
    const { from_ns, to_ns } = selection.get();
    if (from_ns === undefined || to_ns === undefined) return null;
    const origin = model.get("begin_ns");
    const [from, to] = [(from_ns - origin) / 1e6, (to_ns - origin) / 1e6];
    return { from, to, seen: to > begin && from < end };
  };

  /** The overview with its window, and the axis. @param {number} wide @param {number} begin @param {number} end */
  const draw_head = (wide, begin, end) => {
    sized(head, head_pen, wide, HEAD);
    const whole = extent();
    /** @param {number} ms */
    const over = (ms) => plot.x + ((Math.min(Math.max(ms, whole.begin), whole.end) - whole.begin) / (whole.end - whole.begin)) * plot.width;
    const bins = new Float64Array(Math.ceil(plot.width / 2) + 1);
    for (const batch of batches) bins[Math.floor((over(batch.begin) - plot.x) / 2)] += batch.rows;
    const most = Math.max(1, ...bins);
    letters("all", plot.x - 6, 17, "muted", "right");
    box(plot.x, 2, plot.width, OVERVIEW - 4, "panel");
    bins.forEach((rows, i) => {
      const tall = (OVERVIEW - 6) * (rows / most);
      if (rows) box(plot.x + i * 2, OVERVIEW - 2 - tall, 2, tall, "muted");
    });
    box(over(begin), 2, Math.max(3, over(end) - over(begin)), OVERVIEW - 4, "s0", 0.2, true);
    const chosen_stretch = stretch(whole.begin, whole.end);
    if (chosen_stretch?.seen) {
      box(over(chosen_stretch.from), 2, Math.max(2, over(chosen_stretch.to) - over(chosen_stretch.from)), OVERVIEW - 4, "s1", 0.5, true);
    }
    letters("ms", plot.x - 6, HEAD - 7, "muted", "right");
    for (const { x: at, words } of ticks(begin, end)) {
      pen.font = `${FONT}px ${family}`;
      // A label stands at its line, or not at all.
      if (at + pen.measureText(words).width / 2 < wide) letters(words, at, HEAD - 7, "muted", "center");
      box(at, HEAD - 4, 1, 4, "line");
    }
  };

  /** @param {number} begin @param {number} end */
  const ticks = (begin, end) => {
    const step = rounded((end - begin) / Math.max(2, Math.floor(plot.width / 90)));
    const found = [];
    for (let tick = Math.ceil(begin / step) * step; tick <= end; tick += step) {
      const [whole, decimals] = String(Number(tick.toPrecision(10))).split(".");
      found.push({
        x: plot.x + ((tick - begin) / (end - begin)) * plot.width,
        words: decimals ? `${group(whole)}.${decimals}` : group(whole),
      });
    }
    return found;
  };

  const draw = () => {
    const all = /** @type {Lanes[]} */ (model.get("models"));
    const strips = /** @type {Strip[]} */ (model.get("strips"));
    const marks = /** @type {Mark[]} */ (model.get("marks"));
    const wide = Math.max(320, Math.round(root.clientWidth - 8));
    const gutter = Math.min(190, Math.max(110, wide * 0.18));
    const { begin, end } = shown();
    const parts = parts_of(begin, end);
    const { shown: models, idle } = arranged(parts);
    const folded = (/** @type {number} */ at) => !(unfolded.get(at) ?? all.length <= FEW);
    const slots = new Map(models.filter(({ at }) => !folded(at)).map((part) => [
      part.at,
      placed(part.waits.filter((w) => w.left > begin)),
    ]));
    rows = all.map((_, at) => {
      const now = slots.get(at)?.rows ?? 0;
      return range ? now : Math.max(rows[at] ?? 0, now);
    });
    const own_strips = (/** @type {number} */ at) => strips.filter(([owner]) => owner === at);
    const heights = models.map(({ at }) =>
      folded(at)
        ? FOLDED
        : 20 + (rows[at] ? rows[at] * SLOT + GAP + 14 : 0) + all[at].lanes.length * (LANE + GAP)
          + own_strips(at).length * (STRIP + GAP) + 8);
    const idle_rows = idle.length ? 1 + (idle_open ? idle.length : 0) : 0;
    const tall = Math.max(40, heights.reduce((sum, height) => sum + height, 0) + idle_rows * FOLDED + 12);
    plot = { x: gutter, width: wide - gutter - 10, bottom: tall - 4 };
    draw_head(wide, begin, end);
    sized(canvas, lanes_pen, wide, tall);
    /** @param {number} ms */
    const x = (ms) => gutter + ((Math.min(Math.max(ms, begin), end) - begin) / (end - begin)) * plot.width;
    for (const tick of ticks(begin, end)) box(tick.x, 2, 1, plot.bottom - 2, "line", 0.6);
    const failed_only = search.value.trim().toLowerCase() === "failed";
    hits = [];
    let y = 4;

    /** @param {Part} part @param {number} top @param {boolean} open */
    const name_of = (part, top, open) => {
      const one = all[part.at];
      const word = pinned.has(part.at) ? "◆ " : "";
      letters(`${open ? "▾" : "▸"} ${word}${one.name}`, 6, top + 13, "fg", "left", open, open ? wide - 20 : gutter - 12);
      const toggle = () => {
        unfolded.set(part.at, !open);
        rows[part.at] = 0;
      };
      hits.push({ x: 0, y: top, width: open ? gutter * 2 : gutter - 6, height: FOLDED, act: toggle });
    };
    /** @param {Part} part @param {number} top */
    const draw_folded = (part, top) => {
      name_of(part, top, false);
      box(gutter, top + 2, plot.width, FOLDED - 4, "panel");
      let last = -1;
      for (const batch of part.batches) {
        const from = x(batch.begin);
        const to = Math.max(from + 1, x(batch.end));
        // What ends in a pixel that is drawn already adds nothing.
        if (to <= last && !batch.failed) continue;
        last = to;
        const role = batch.failed ? "s1" : (marks[batch.mark]?.[1] ?? "s5");
        box(from, top + 4, to - from, FOLDED - 8, role, failed_only && !batch.failed ? 0.15 : 0.6);
        hits.push({ x: from, y: top, width: to - from, height: FOLDED, batch });
      }
    };

    models.forEach((part, place_of) => {
      const { at } = part;
      const one = all[at];
      if (folded(at)) {
        draw_folded(part, y);
        y += heights[place_of];
        return;
      }
      name_of(part, y, true);
      const { found, beyond } = slots.get(at) ?? { found: [], beyond: 0 };
      const lanes_top = y + 20 + (rows[at] ? rows[at] * SLOT + GAP + 14 : 0);
      for (const { one: wait, row } of found) {
        const from = x(wait.begin);
        const width = Math.max(2, x(wait.left) - from);
        const top = y + 20 + row * SLOT;
        const is_chosen = chosen === wait;
        const faint = failed_only && !wait.failed ? 0.15 : 1;
        box(from, top, width, is_chosen ? 5 : 4, wait.failed ? "s1" : "s0", faint);
        if (wait.open && wait.left >= wait.end && wait.end <= end) ragged(from + width, top, 4, "s0");
        if (wait.lane >= 0 && wait.left <= end) {
          const lane = lanes_top + wait.lane * (LANE + GAP);
          box(from + width - 1, top + 2, is_chosen ? 2 : 1, lane - top - 2, wait.failed ? "s1" : "s0",
            is_chosen ? 1 : 0.35 * faint);
        }
        hits.push({ x: from, y: top - 1, width, height: SLOT, wait });
      }
      if (beyond) letters(`and ${count(beyond)} more at the same time`, gutter, lanes_top - 5, "muted");
      one.lanes.forEach((name, lane) => {
        const top = lanes_top + lane * (LANE + GAP);
        letters(name, gutter - 6, top + 16, "muted", "right", false, gutter - 12);
        box(gutter, top, plot.width, LANE, "panel");
      });
      for (const batch of part.batches) {
        const mark = marks[batch.mark] ?? ["C", "muted", "", []];
        const [letter, role] = mark;
        const top = lanes_top + batch.lane * (LANE + GAP);
        const from = x(batch.begin);
        const width = Math.max(2, x(batch.end) - from);
        const is_chosen = chosen_batch === batch;
        const faint = failed_only && !batch.failed ? 0.3 : 1;
        box(from, top + 2, width, LANE - 4, role, (is_chosen ? 0.7 : 0.4) * faint, true);
        if (width > 6) texture(from, top + 2, width, LANE - 4, mark);
        if (batch.failed) box(from, top + LANE - 4, width, 3, "s1");
        let words = width > 34 ? `${letter} ${batch.rows}` : letter;
        if (batch.open && batch.end <= end) {
          ragged(from + width, top + 2, LANE - 4, role);
          const running = `${letter} ${batch.rows} · running ${lasting(batch.end - batch.begin)}`;
          pen.font = `600 ${FONT}px ${family}`;
          if (pen.measureText(running).width + 8 < width) words = running;
        }
        if (width > 12) {
          pen.font = `600 ${FONT}px ${family}`;
          const room = pen.measureText(words).width + 2;
          if (mark[3].length) box(from + (width - room) / 2, top + 6, room, 13, "bg", 0.75);
          letters(words, from + width / 2, top + 16, "fg", "center", true);
        }
        hits.push({ x: from, y: top, width, height: LANE, batch });
      }
      let top = lanes_top + one.lanes.length * (LANE + GAP);
      for (const [, name, spans] of own_strips(at)) {
        letters(name, gutter - 6, top + 13, "muted", "right", false, gutter - 12);
        box(gutter, top + STRIP - 1, plot.width, 1, "line");
        for (const [from, to, label, level] of spans) {
          if (to <= begin || from >= end) continue;
          const width = Math.max(1, x(to) - x(from));
          const height = STRIP * Math.min(1, level);
          box(x(from), top + STRIP - height, width, height, "s5", 0.4, true);
          pen.font = `${FONT}px sans-serif`;
          if (pen.measureText(label).width + 6 < width) {
            letters(label, x(from) + width / 2, top + 13, "fg", "center");
          }
        }
        top += STRIP + GAP;
      }
      y += heights[place_of];
    });
    if (idle.length) {
      const toggle_idle = () => {
        idle_open = !idle_open;
      };
      const names = idle.map((part) => all[part.at].name).join(", ");
      letters(`${idle_open ? "▾" : "▸"} ${counted(idle.length, "idle model")}: ${names}`, 6, y + 13, "muted", "left", false, wide - 20);
      hits.push({ x: 0, y, width: wide, height: FOLDED, act: toggle_idle });
      y += FOLDED;
      for (const part of idle_open ? idle : []) {
        draw_folded(part, y);
        y += FOLDED;
      }
    }
    if (!models.length && !idle.length) letters(search.value ? "nothing fits the search" : "no model is shown", gutter, 20, "muted");
    const picked = stretch(begin, end);
    if (picked?.seen) box(x(picked.from), 2, Math.max(2, x(picked.to) - x(picked.from)), plot.bottom - 2, "s0", 0.12, true);
    if (brush) {
      const from = Math.min(brush.from, brush.to);
      box(from, 2, Math.abs(brush.to - brush.from), plot.bottom - 2, "s0", 0.2, true);
    }
    write(matches, search.value.trim() && !/^\d+$/.test(search.value.trim())
      ? `${count(models.length + idle.length)} of ${counted(all.length, "model")}` : "");
    const inside = parts.flatMap((part) => part.batches);
    tell(inside, parts.flatMap((part) => part.waits), marks, begin, end);
    follows.setAttribute("aria-pressed", String(!range));
    unfold.hidden = all.length <= 1;
  };

  /** The panel about what is selected: only when the selection or the data in it changes. */
  const draw_panel = () => {
    const { model: only } = selection.get();
    const picked = stretch(-Infinity, Infinity);
    panel.hidden = !picked && !only;
    if (panel.hidden) return panel.replaceChildren();
    const all = /** @type {Lanes[]} */ (model.get("models"));
    const marks = /** @type {Mark[]} */ (model.get("marks"));
    const actions = make("div", "nbt-timeline-bar");
    const act = (/** @type {string} */ text, /** @type {() => void} */ what) => button(text, text, what, actions);
    const content = [];
    if (picked) {
      const { from, to } = picked;
      const parts = parts_of(from, to).filter((part) => (part.batches.length || part.waits.length) && wanted(part));
      const answered = (/** @type {Part} */ part) => part.waits.filter((w) => !w.open).map((w) => w.end - w.begin).sort((a, b) => a - b);
      const reasons = (/** @type {Batch[]} */ those) => {
        const counts = new Map();
        for (const { mark } of those) counts.set(marks[mark][0], (counts.get(marks[mark][0]) ?? 0) + 1);
        return [...counts].sort((a, b) => b[1] - a[1]).map(([letter, many]) => `${letter} ${count(many)}`).join(", ") || "–";
      };
      const total = parts.reduce((sum, part) => sum + part.batches.length, 0);
      const request = selection.get().request;
      content.push(make("div", "nbt-timeline-selected",
        `${request ? `request ${request}` : "selected"}: ${measure(to - from)} ms, ${counted(total, "batch", "batches")}`
          + `${left_out ? " (a sample: some came too fast to be drawn)" : ""}`));
      const table = make("table", "");
      const line = (/** @type {string} */ tag, /** @type {string[]} */ cells) => {
        const row = make("tr", "");
        row.append(...cells.map((cell) => make(tag, "", cell)));
        table.append(row);
      };
      line("th", ["model", "requests", "p50 [ms]", "p99 [ms]", "mean wait [ms]", "batches", "mean rows", "reasons"]);
      for (const part of parts.slice(0, MOST_ROWS)) {
        const took = answered(part);
        const waited = part.waits.filter((w) => w.lane >= 0).map((w) => w.left - w.begin);
        const rows_sum = part.batches.reduce((sum, batch) => sum + batch.rows, 0);
        line("td", [
          all[part.at].name, count(part.waits.length), measure(percentile(took, 50)), measure(percentile(took, 99)),
          measure(waited.reduce((sum, ms) => sum + ms, 0) / waited.length), count(part.batches.length),
          measure(rows_sum / part.batches.length), reasons(part.batches),
        ]);
      }
      content.push(table);
      if (parts.length > MOST_ROWS) content.push(make("div", "", `and ${counted(parts.length - MOST_ROWS, "more model")}`));
      act("Zoom to it", to_selection);
    }
    if (only) content.push(make("div", "", `only ${only} is shown`));
    act("Clear", () => selection.put({}));
    panel.replaceChildren(...content, actions);
  };

  /** The sentence and the legend. @param {Batch[]} inside @param {Wait[]} waiting
   * @param {Mark[]} marks @param {number} begin @param {number} end */
  const tell = (inside, waiting, marks, begin, end) => {
    const ended = inside.filter((b) => !b.open);
    const running = inside.filter((b) => b.open);
    const counts = new Map();
    let sum = 0;
    for (const batch of ended) {
      counts.set(batch.mark, (counts.get(batch.mark) ?? 0) + 1);
      sum += batch.rows;
    }
    const most = [...counts].sort((a, b) => b[1] - a[1])[0];
    let sentence = `${model.get("title")}: no batch ended in this stretch`;
    if (most) {
      const batches = counted(ended.length, "batch", "batches");
      sentence = `${model.get("title")}: ${batches} with ${counted(sum, "row")} within `
        + `${measure(end - begin)} ms; of ${count(most[1])} the reason is: ${marks[most[0]][2]}`;
    }
    if (latest > -Infinity) {
      const longest = Math.max(0, ...running.map((b) => b.end - b.begin));
      const runs = running.length ? `${counted(running.length, "batch", "batches")} running, for up to ${lasting(longest)}` : "";
      const held = waiting.filter((w) => w.open && w.left >= w.end).length;
      const waits = held ? `${counted(held, "request")} waiting` : "";
      const words = [runs, waits].filter(Boolean).join(", ");
      if (words) sentence = most ? `${sentence}. ${words}` : `${model.get("title")}: ${words}`;
    }
    if (left_out) sentence += `. A sample: ${counted(left_out, "batch", "batches")} came too fast to be drawn`;
    write(finding, sentence);
    const now = performance.now();
    if (now - spoken > SAY_TIMELINE_MS) {
      spoken = now;
      write(said, sentence);
    }
    const seen = [...new Set(inside.map((b) => b.mark))].sort((a, b) => a - b);
    if (seen.join() === legend_shown) return;
    legend_shown = seen.join();
    legend.replaceChildren(
      ...seen.map((at) => {
        const [letter, role, words, lines] = marks[at];
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
      }),
    );
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
    const { begin, end } = extent();
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
      ? batches.find((b) => b.model === wait.model && b.lane === wait.lane && b.begin === wait.left) ?? null
      : null);
    const marks = /** @type {Mark[]} */ (model.get("marks"));
    const lanes = /** @type {Lanes[]} */ (model.get("models"));
    const words = [];
    if (wait) {
      words.push(`Request ${wait.number} of ${some(wait.rows, "row")}: arrived at ${measure(wait.begin)} ms`);
      if (wait.lane >= 0) {
        words.push(`waited ${measure(wait.left - wait.begin)} ms`);
        words.push(wait.open ? "not answered yet" : `answered after ${measure(wait.end - wait.begin)} ms`);
      } else if (wait.open) words.push(`inside for ${lasting(wait.end - wait.begin)}, not answered yet`);
      else words.push(`${measure(wait.end - wait.begin)} ms in flight, without a batch of its own`);
      if (wait.failed) words.push("failed");
    }
    if (chosen_batch) {
      const [letter, , reason] = marks[chosen_batch.mark];
      const name = lanes[chosen_batch.model].lanes[chosen_batch.lane];
      words.push(
        `${wait ? "it rode in a" : "A"} batch of ${some(chosen_batch.rows, "row")} from `
          + `${some(chosen_batch.requests, "request")} `
          + `that ${chosen_batch.open ? "has run" : "ran"} ${measure(chosen_batch.end - chosen_batch.begin)} ms on ${name} and left because of `
          + `${letter}: ${reason}`,
      );
      if (!wait) words.push(`its oldest request waited ${measure(chosen_batch.wait)} ms`);
      if (chosen_batch.failed) words.push("it failed");
    }
    write(life, words.length ? `${words.join("; ")}.` : "");
  };

  /** @param {number} by */
  const step_to = (by) => {
    const { begin, end } = shown();
    const among = waits.filter((w) => w.end > begin && w.begin < end);
    let at = chosen ? waits.indexOf(chosen) + by : waits.indexOf(by > 0 ? among[0] : among[among.length - 1]);
    at = Math.min(Math.max(at, 0), waits.length - 1);
    if (!waits[at]) return;
    choose(waits[at], null);
    const { begin: from, left } = waits[at];
    if (left < begin || from > end) show(from - (end - begin) / 2, from + (end - begin) / 2);
    else if (!range) range = { begin, end };
    draw();
  };

  const to_selection = () => {
    const picked = stretch(-Infinity, Infinity);
    if (!picked) return;
    const room = (picked.to - picked.from) * 0.1;
    show(picked.from - room, picked.to + room);
  };
  /** @param {number} from in ms @param {number} to @param {number} [request] */
  const select = (from, to, request) => {
    const origin = model.get("begin_ns");
    const { model: only } = selection.get();
    selection.put({
      ...(only ? { model: only } : {}),
      from_ns: Math.round(origin + from * 1e6),
      to_ns: Math.round(origin + to * 1e6),
      ...(request ? { request } : {}),
    });
  };
  /** @param {Wait | null} wait */
  const select_request = (wait) => {
    if (wait) select(wait.begin, wait.end, wait.number);
  };
  /** The kernel knows ids, and more requests than the page. @param {string} text */
  const find = (text) => {
    const known = waits.find((wait) => String(wait.number) === text);
    if (known) select_request(known);
    else send(model, { kind: "find", text });
  };
  const onSelection = () => {
    const { request } = selection.get();
    const wait = waits.find((one) => one.number === request);
    if (request && wait) {
      choose(wait, null);
      unfolded.set(wait.model, true);
    }
    const { begin, end } = shown();
    const picked = stretch(begin, end);
    // What is out of sight, or too short to be seen, is shown.
    if (picked && (!picked.seen || (request && picked.to - picked.from < (end - begin) / 50))) to_selection();
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
  const onMove = (/** @type {PointerEvent} */ event) => {
    const at = place(event);
    if (brush) {
      brush.to = at.x;
      draw();
    } else if (drag) {
      const by = ((drag.at - at.x) / plot.width) * (drag.end - drag.begin);
      show(drag.begin + by, drag.end + by);
    } else {
      const hit = under(at);
      canvas.style.cursor = hit?.act ? "pointer" : "crosshair";
      if (!hit || hit.act || (hit.wait === chosen && !hit.batch)) return;
      choose(hit.wait ?? null, hit.batch ?? null);
      draw();
    }
  };
  /** @param {{x: number, y: number}} at */
  const under = (at) => hits.findLast(
    (one) => at.x >= one.x - 2 && at.x <= one.x + one.width + 2 && at.y >= one.y && at.y <= one.y + one.height,
  );
  const onDown = (/** @type {PointerEvent} */ event) => {
    if (event.button) return;
    const at = place(event);
    canvas.setPointerCapture(event.pointerId);
    if (event.shiftKey) drag = { at: at.x, ...shown() };
    else brush = { from: at.x, to: at.x };
  };
  const onUp = (/** @type {PointerEvent} */ event) => {
    const done = brush;
    brush = drag = null;
    if (done && Math.abs(done.to - done.from) > 5) {
      select(time(Math.min(done.from, done.to)), time(Math.max(done.from, done.to)));
    } else if (done) {
      const hit = under(place(event));
      if (hit?.act) hit.act();
      else if (hit?.wait) select_request(hit.wait);
    }
    draw();
  };
  /** The window goes where the pointer is in the overview. @param {PointerEvent} event */
  const onWindow = (event) => {
    if (event.type === "pointerdown") {
      if (event.button) return;
      head.setPointerCapture(event.pointerId);
      window_drag = true;
    }
    if (!window_drag) return;
    const whole = extent();
    const share = Math.min(1, Math.max(0, (event.clientX - head.getBoundingClientRect().left - plot.x) / plot.width));
    const { begin, end } = shown();
    const middle = whole.begin + share * (whole.end - whole.begin);
    show(middle - (end - begin) / 2, middle + (end - begin) / 2);
    if (event.type === "pointerup") window_drag = false;
  };
  const onWheel = (/** @type {WheelEvent} */ event) => {
    // Elsewhere the wheel scrolls the page.
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 1000);
    else zoom(1.0015 ** event.deltaY, time(place(event).x));
  };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      ArrowLeft: () => (event.shiftKey ? pan(-0.25) : step_to(-1)),
      ArrowRight: () => (event.shiftKey ? pan(0.25) : step_to(1)),
      "+": () => zoom(0.5),
      "=": () => zoom(0.5),
      "-": () => zoom(2),
      0: all_of_it,
      f: newest,
      Home: () => {
        const { begin } = extent();
        const now = shown();
        show(begin, begin + now.end - now.begin);
      },
      End: newest,
      Enter: () => select_request(chosen),
      s: () => select(shown().begin, shown().end),
      z: to_selection,
      p: () => {
        const at = chosen?.model ?? chosen_batch?.model;
        if (at !== undefined) pin(at);
      },
      Escape: () => {
        choose(null, null);
        selection.put({});
        draw();
      },
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    act();
    // A notebook takes these keys for its cells.
    event.preventDefault();
    event.stopPropagation();
  };

  /** @param {number} at the place of a model: it stays at the top */
  const pin = (at) => {
    if (!pinned.delete(at)) pinned.add(at);
    draw();
  };

  /** @param {string} text @param {string} label @param {() => void} act @param {HTMLElement} [into] */
  const button = (text, label, act, into = bar) => {
    const made = /** @type {HTMLButtonElement} */ (make("button", "", text));
    made.type = "button";
    made.setAttribute("aria-label", label);
    made.title = label;
    made.addEventListener("click", act);
    into.append(made);
    return made;
  };
  button("+", "zoom in", () => zoom(0.5));
  button("−", "zoom out", () => zoom(2));
  button("◂", "earlier", () => pan(-0.25));
  button("▸", "later", () => pan(0.25));
  button("All", "all that is recorded", all_of_it);
  const follows = button("Newest", "follow the newest", newest);
  const unfold = button("Fold", "fold or unfold all models", () => {
    const all = /** @type {Lanes[]} */ (model.get("models"));
    const open = all.some((_, at) => unfolded.get(at) ?? all.length <= FEW);
    for (const at of all.keys()) unfolded.set(at, !open);
    rows = [];
    draw();
  });
  bar.append(search, matches);
  search.addEventListener("input", () => draw());
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && search.value.trim()) find(search.value.trim());
    if (event.key === "Escape") {
      search.value = "";
      draw();
    }
    event.stopPropagation();
  });
  button("Trace", "save a trace, which Perfetto opens", () => send(model, { kind: "trace" }));

  const onCustom = (/** @type {any} */ content, /** @type {DataView[]} */ buffers) => {
    if (content.kind === "missing") write(matches, `no request ${content.text} is recorded`);
    if (content.kind !== "trace") return;
    const link = /** @type {HTMLAnchorElement} */ (make("a", ""));
    link.href = URL.createObjectURL(
      new Blob([/** @type {any} */ (buffers[0])], { type: "application/json" }),
    );
    link.download = content.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  const redraw = () => {
    read_colours();
    draw();
  };
  const sizes = new ResizeObserver(() => root.isConnected && redraw());
  sizes.observe(root);
  const onDouble = (/** @type {MouseEvent} */ event) => {
    const hit = under(place(event));
    const at = hit?.batch?.model ?? hit?.wait?.model;
    if (at !== undefined) pin(at);
  };
  for (const kind of /** @type {("pointerdown" | "pointermove" | "pointerup")[]} */ (["pointerdown", "pointermove", "pointerup"])) {
    head.addEventListener(kind, onWindow);
  }
  canvas.addEventListener("pointerenter", () => {
    hovering = true;
  });
  canvas.addEventListener("pointerleave", () => {
    hovering = false;
  });
  canvas.addEventListener("dblclick", onDouble);
  document.addEventListener("click", onLink);
  canvas.addEventListener("pointermove", onMove);
  canvas.addEventListener("pointerdown", onDown);
  canvas.addEventListener("pointerup", onUp);
  canvas.addEventListener("wheel", onWheel, { passive: false });
  canvas.addEventListener("keydown", onKey);
  model.on("change:frame", consume);
  model.on("msg:custom", onCustom);
  consume();
  const stop = follow(model, ["models", "strips", "resting"], redraw, root);
  if (Object.keys(selection.get()).length) onSelection();
  return () => {
    stop();
    selection.stop();
    document.removeEventListener("click", onLink);
    sizes.disconnect();
    model.off("change:frame", consume);
    model.off("msg:custom", onCustom);
    root.remove();
  };
}

export default widget(render);
