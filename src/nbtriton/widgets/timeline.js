/** @typedef {{model: number, lane: number, begin: number, end: number, rows: number, requests: number,
 *   mark: number, wait: number, failed: boolean, number: number, open: boolean}} Batch */
/** @typedef {{model: number, lane: number, begin: number, left: number, end: number, rows: number,
 *   failed: boolean, number: number, open: boolean}} Wait */
/** @typedef {{name: string, lanes: string[], records: boolean}} Lanes */
/** @typedef {[number, string, [number, number, string, number][]]} Strip */
/** @typedef {{x: number, y: number, width: number, height: number, batch?: Batch, wait?: Wait}} Hit */

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
const FONT = 12;
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
  const legend = make("ul", "nbt-timeline-legend");
  const canvas = /** @type {HTMLCanvasElement} */ (make("canvas", ""));
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
      + "shift with left and right pans, 0 shows all, F follows the newest",
  );
  life.setAttribute("aria-live", "polite");
  said.setAttribute("role", "status");
  root.append(finding, bar, legend, canvas, life, said, probe);
  el.append(root);
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));

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
  let plot = { x: 0, width: 1, bottom: 0 };
  let spoken = -Infinity;
  let legend_text = "";
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
  };

  /** @param {string} text @param {number} x @param {number} y @param {string} role
   * @param {CanvasTextAlign} [align] @param {boolean} [bold] @param {number} [room] */
  const letters = (text, x, y, role, align = "left", bold = false, room = Infinity) => {
    pen.font = `${bold ? "600 " : ""}${FONT}px ${getComputedStyle(root).fontFamily}`;
    pen.textAlign = align;
    pen.fillStyle = colours[role];
    let words = text;
    // The names of lanes differ at their ends.
    while (pen.measureText(words).width > room && words.length > 3) {
      words = align === "right" ? `…${words.slice(2)}` : `${words.slice(0, -2)}…`;
    }
    pen.fillText(words, x, y);
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

  /** Give each request of a model the first free row. @param {Wait[]} those */
  const placed = (those) => {
    /** @type {number[]} */
    const ends = [];
    return those.map((one) => {
      let row = ends.findIndex((end) => end <= one.begin);
      if (row < 0) row = ends.length;
      ends[row] = Math.max(one.left, one.begin);
      return { one, row };
    });
  };

  const draw = () => {
    const all = /** @type {Lanes[]} */ (model.get("models"));
    const strips = /** @type {Strip[]} */ (model.get("strips"));
    const marks = /** @type {[string, string, string][]} */ (model.get("marks"));
    const wide = Math.max(320, Math.round(root.clientWidth - 8));
    const gutter = Math.min(170, Math.max(90, wide * 0.18));
    const { begin, end } = shown();
    const inside = batches.filter((b) => b.end > begin && b.begin < end);
    const waiting = waits.filter((w) => w.end > begin && w.begin < end && w.left > begin);
    const slots = all.map((_, at) => placed(waiting.filter((w) => w.model === at)));
    rows = all.map((_, at) => {
      const now = Math.min(MOST_SLOTS, Math.max(0, ...slots[at].map(({ row }) => row + 1)));
      return range ? now : Math.max(rows[at] ?? 0, now);
    });
    const heights = all.map(
      (one, at) =>
        20 + (rows[at] ? rows[at] * SLOT + GAP + 14 : 0)
        + one.lanes.length * (LANE + GAP)
        + strips.filter(([owner]) => owner === at).length * (STRIP + GAP) + 8,
    );
    const tall = heights.reduce((sum, height) => sum + height, 0) + 40;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(tall * ratio)) {
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(tall * ratio);
      canvas.style.height = `${tall}px`;
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, tall);
    plot = { x: gutter, width: wide - gutter - 10, bottom: tall - 34 };
    /** @param {number} ms */
    const x = (ms) => gutter + ((Math.min(Math.max(ms, begin), end) - begin) / (end - begin)) * plot.width;

    const step = rounded((end - begin) / Math.max(2, Math.floor(plot.width / 90)));
    for (let tick = Math.ceil(begin / step) * step; tick <= end; tick += step) {
      box(x(tick), 6, 1, plot.bottom - 6, "line", 0.6);
      const words = String(Number((tick).toPrecision(10)));
      letters(words, Math.min(Math.max(x(tick), gutter + 14), wide - 22), plot.bottom + 13, "muted", "center");
    }
    letters("milliseconds", wide - 8, plot.bottom + 26, "muted", "right");

    hits = [];
    let y = 6;
    all.forEach((one, at) => {
      letters(one.name, 8, y + 12, "fg", "left", true, wide - 20);
      const lanes_top = y + 20 + (rows[at] ? rows[at] * SLOT + GAP + 14 : 0);
      let beyond = 0;
      for (const { one: wait, row } of slots[at]) {
        if (row >= MOST_SLOTS) {
          beyond += 1;
          continue;
        }
        const from = x(wait.begin);
        const width = Math.max(2, x(wait.left) - from);
        const top = y + 20 + row * SLOT;
        const is_chosen = chosen === wait;
        box(from, top, width, is_chosen ? 5 : 4, wait.failed ? "s1" : "s0");
        if (wait.open && wait.left >= wait.end && wait.end <= end) ragged(from + width, top, 4, "s0");
        if (wait.lane >= 0 && wait.left <= end) {
          const lane = lanes_top + wait.lane * (LANE + GAP);
          box(from + width - 1, top + 2, is_chosen ? 2 : 1, lane - top - 2, wait.failed ? "s1" : "s0",
            is_chosen ? 1 : 0.35);
        }
        hits.push({ x: from, y: top - 1, width, height: SLOT, wait });
      }
      if (beyond) letters(`and ${count(beyond)} more at the same time`, gutter, lanes_top - 5, "muted");
      one.lanes.forEach((name, lane) => {
        const top = lanes_top + lane * (LANE + GAP);
        letters(name, gutter - 6, top + 16, "muted", "right", false, gutter - 12);
        box(gutter, top, plot.width, LANE, "panel");
      });
      for (const batch of inside) {
        if (batch.model !== at) continue;
        const [letter, role] = marks[batch.mark] ?? ["C", "s5"];
        const top = lanes_top + batch.lane * (LANE + GAP);
        const from = x(batch.begin);
        const width = Math.max(2, x(batch.end) - from);
        const is_chosen = chosen_batch === batch;
        box(from, top + 2, width, LANE - 4, role, is_chosen ? 0.7 : 0.4, true);
        if (batch.failed) box(from, top + LANE - 4, width, 3, "s1");
        let words = width > 34 ? `${letter} ${batch.rows}` : letter;
        if (batch.open && batch.end <= end) {
          ragged(from + width, top + 2, LANE - 4, role);
          const running = `${letter} ${batch.rows} · running ${lasting(batch.end - batch.begin)}`;
          pen.font = `600 ${FONT}px ${getComputedStyle(root).fontFamily}`;
          if (pen.measureText(running).width + 8 < width) words = running;
        }
        if (width > 12) letters(words, from + width / 2, top + 16, "fg", "center", true);
        hits.push({ x: from, y: top, width, height: LANE, batch });
      }
      let top = lanes_top + one.lanes.length * (LANE + GAP);
      for (const [owner, name, spans] of strips) {
        if (owner !== at) continue;
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
      y += heights[at];
    });
    if (brush) {
      const from = Math.min(brush.from, brush.to);
      box(from, 4, Math.abs(brush.to - brush.from), plot.bottom - 4, "s0", 0.2, true);
    }
    tell(inside, waiting, marks, begin, end);
    follows.setAttribute("aria-pressed", String(!range));
  };

  /** The sentence and the legend. @param {Batch[]} inside @param {Wait[]} waiting
   * @param {[string, string, string][]} marks @param {number} begin @param {number} end */
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
    if (left_out) sentence += `. ${count(left_out)} that came too fast are not drawn`;
    write(finding, sentence);
    const now = performance.now();
    if (now - spoken > SAY_TIMELINE_MS) {
      spoken = now;
      write(said, sentence);
    }
    const seen = [...new Set(inside.map((b) => b.mark))].sort((a, b) => a - b);
    if (seen.join() === legend_text) return;
    legend_text = seen.join();
    legend.replaceChildren(
      ...seen.map((at) => {
        const [letter, role, words] = marks[at];
        const item = make("li", "");
        const badge = make("b", "", letter);
        badge.style.borderColor = `var(--nbt-${role})`;
        badge.style.background = `color-mix(in srgb, var(--nbt-${role}) 40%, var(--nbt-bg))`;
        item.append(badge, make("span", "", words));
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
    const marks = /** @type {[string, string, string][]} */ (model.get("marks"));
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
      const hit = hits.findLast(
        (one) => at.x >= one.x - 2 && at.x <= one.x + one.width + 2 && at.y >= one.y && at.y <= one.y + one.height,
      );
      if (!hit || (hit.wait === chosen && !hit.batch)) return;
      choose(hit.wait ?? null, hit.batch ?? null);
      draw();
    }
  };
  const onDown = (/** @type {PointerEvent} */ event) => {
    if (event.button) return;
    const at = place(event);
    canvas.setPointerCapture(event.pointerId);
    if (event.shiftKey) drag = { at: at.x, ...shown() };
    else brush = { from: at.x, to: at.x };
  };
  const onUp = () => {
    const done = brush;
    brush = drag = null;
    if (done && Math.abs(done.to - done.from) > 5) {
      show(time(Math.min(done.from, done.to)), time(Math.max(done.from, done.to)));
    } else draw();
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
      F: newest,
      Home: () => {
        const { begin } = extent();
        const now = shown();
        show(begin, begin + now.end - now.begin);
      },
      End: newest,
      Escape: () => {
        choose(null, null);
        draw();
      },
    }[event.key];
    if (!act) return;
    act();
    // A notebook takes these keys for its cells.
    event.preventDefault();
    event.stopPropagation();
  };

  /** @param {string} text @param {string} label @param {() => void} act */
  const button = (text, label, act) => {
    const made = /** @type {HTMLButtonElement} */ (make("button", "", text));
    made.type = "button";
    made.setAttribute("aria-label", label);
    made.title = label;
    made.addEventListener("click", act);
    bar.append(made);
    return made;
  };
  button("+", "zoom in", () => zoom(0.5));
  button("−", "zoom out", () => zoom(2));
  button("◂", "earlier", () => pan(-0.25));
  button("▸", "later", () => pan(0.25));
  button("All", "all that is recorded", all_of_it);
  const follows = button("Newest", "follow the newest", newest);
  button("Trace", "save a trace, which Perfetto opens", () => send(model, { kind: "trace" }));

  const onCustom = (/** @type {any} */ content, /** @type {DataView[]} */ buffers) => {
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
  canvas.addEventListener("pointermove", onMove);
  canvas.addEventListener("pointerdown", onDown);
  canvas.addEventListener("pointerup", onUp);
  canvas.addEventListener("wheel", onWheel, { passive: false });
  canvas.addEventListener("keydown", onKey);
  model.on("change:frame", consume);
  model.on("msg:custom", onCustom);
  consume();
  const stop = follow(model, ["models", "strips", "resting"], redraw, root);
  return () => {
    stop();
    sizes.disconnect();
    model.off("change:frame", consume);
    model.off("msg:custom", onCustom);
    root.remove();
  };
}

export default widget(render);
