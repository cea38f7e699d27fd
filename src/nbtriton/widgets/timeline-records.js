// What the page of a timeline keeps of batches and requests, and what of them stands in a stretch of time.

/** @typedef {{model: number, lane: number, begin: number, end: number, rows: number, requests: number,
 *   mark: number, wait: number, failed: boolean, number: number, open: boolean}} Batch */
/** @typedef {{model: number, lane: number, begin: number, left: number, end: number, rows: number,
 *   failed: boolean, number: number, open: boolean}} Wait */
/** @typedef {{name: string, lanes: string[], records: boolean}} Lanes */
/** What one model has in a stretch of time.
 * @typedef {{at: number, name: string, lanes: string[], batches: Batch[], waits: Wait[], busy: number, failed: number}} Part */
/** @typedef {{begin: number, end: number}} Stretch in ms */

// What a page keeps: some minutes of a busy server, and some 10 MB.
const MOST_BATCHES = 6000;
const MOST_WAITS = 12000;
// The newest batches that are shown while it follows: each still has its letter.
const SHOWN = 40;
const MOST_SLOTS = 24;
const BINS = 500; // in which pauses are looked for

/** @param {Model} model */
function timelineRecords(model) {
  const kept = {
    batches: /** @type {Batch[]} */ ([]),
    waits: /** @type {Wait[]} */ ([]),
    left_out: 0, // batches that came too fast to be sent
    latest: -Infinity, // when the newest frame was sent, while something is in flight
  };
  let last_frame = -1;
  /** @type {Stretch | null} */
  let known = null; // the extent of what is kept: each drawing asks for it several times

  /** Read a frame, and return whether it is a new one: each adds to those before, so none is left out. */
  const consume = () => {
    const next = reader(model.get("frame"));
    if (!next.left()) return false;
    const frame = next();
    const whole = next();
    const [many_batches, many_waits, more, now, open_batches, open_waits] = Array.from({ length: 6 }, next);
    if (frame === last_frame) return false;
    last_frame = frame;
    // What is in flight is sent anew in each frame.
    const batches = whole ? [] : kept.batches.filter((b) => !b.open);
    const waits = whole ? [] : kept.waits.filter((w) => !w.open);
    kept.left_out = more;
    kept.latest = open_batches + open_waits ? now : -Infinity;
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
    kept.batches = batches.sort((a, b) => a.begin - b.begin).slice(-MOST_BATCHES);
    kept.waits = waits.sort((a, b) => a.begin - b.begin).slice(-MOST_WAITS);
    known = null;
    return true;
  };

  /** All that is kept. @returns {Stretch} */
  const extent = () => {
    if (known) return known;
    let [begin, end] = [Infinity, kept.latest];
    for (const one of kept.batches) [begin, end] = [Math.min(begin, one.begin - one.wait), Math.max(end, one.end)];
    for (const one of kept.waits) [begin, end] = [Math.min(begin, one.begin), Math.max(end, one.end)];
    if (end > begin) known = { begin, end };
    return known ?? { begin: 0, end: Math.max(1, model.get("span_ms")) };
  };

  /** The stretches of a fifth of all or more in which nothing was inside. @param {Stretch} whole @returns {Stretch[]} */
  const pauses = ({ begin, end }) => {
    const width = (end - begin) / BINS;
    const bin = (/** @type {number} */ ms) => Math.min(BINS - 1, Math.max(0, Math.floor((ms - begin) / width)));
    const changes = new Int32Array(BINS + 1);
    /** @param {(from: number, to: number) => void} visit */
    const lives = (visit) => {
      for (const one of kept.batches) visit(one.begin - one.wait, one.end);
      for (const one of kept.waits) visit(one.begin, one.end);
    };
    lives((from, to) => {
      changes[bin(from)] += 1;
      changes[bin(to) + 1] -= 1;
    });
    const found = [];
    for (let i = 0, first = 0, many = 0; i < BINS; i++) {
      many += changes[i];
      if (!many) continue;
      if (i - first >= BINS / 5) found.push(begin + ((first + i) / 2) * width);
      first = i + 1;
    }
    // From the last end to the next begin: a bin is long beside what is in it.
    return found.map((middle) => {
      const pause = { begin, end };
      lives((from, to) => {
        if (to <= middle) pause.begin = Math.max(pause.begin, to);
        if (from >= middle) pause.end = Math.min(pause.end, from);
      });
      return pause;
    });
  };

  /** What is shown while it follows the newest. @returns {Stretch} */
  const newest = () => {
    const whole = extent();
    const asked = /** @type {number} */ (model.get("asked_ms"));
    if (asked) return { begin: whole.end - asked, end: whole.end };
    const batches = kept.batches.slice(-SHOWN);
    const begin = batches.length ? Math.min(...batches.map((b) => b.begin - b.wait)) : whole.begin;
    const width = Math.max(whole.end - begin, 1e-3);
    // While it moves the scale changes in steps, else it would never stand still.
    return { begin: model.get("resting") ? begin : whole.end - roundedUp(width, [1, 2, 5]), end: whole.end };
  };

  /** What each model has between two times. @param {Stretch} stretch @returns {Part[]} */
  const parts = ({ begin, end }) => {
    const found = /** @type {Lanes[]} */ (model.get("models")).map(({ name, lanes }, at) =>
      /** @type {Part} */ ({ at, name, lanes, batches: [], waits: [], busy: 0, failed: 0 }));
    for (const batch of kept.batches) {
      const part = found[batch.model];
      if (!part || batch.end <= begin || batch.begin >= end) continue;
      part.batches.push(batch);
      part.busy += Math.min(batch.end, end) - Math.max(batch.begin, begin);
      part.failed += Number(batch.failed);
    }
    for (const wait of kept.waits) {
      const part = found[wait.model];
      if (!part || wait.end <= begin || wait.begin >= end) continue;
      part.waits.push(wait);
      part.failed += Number(wait.failed);
    }
    for (const part of found) part.busy /= (end - begin) * Math.max(1, part.lanes.length);
    return found;
  };

  return Object.assign(kept, { consume, extent, pauses, newest, parts });
}

/** Whether a model fits a search; what is no name is looked up by number or id with Enter. @param {Part} part @param {string} text */
function fitsSearch(part, text) {
  const share = text.match(/^busy\s*([<>])\s*(\d+(?:\.\d+)?)\s*%?$/);
  if (share) return share[1] === ">" ? part.busy * 100 > Number(share[2]) : part.busy * 100 < Number(share[2]);
  if (text === "failed") return part.failed > 0;
  return !text || /^\d+$/.test(text) || [part.name, ...part.lanes].some((name) => name.toLowerCase().includes(text));
}

/** Give each request of a model the first free row; those beyond the last row are only counted. @param {Wait[]} waits */
function placed(waits) {
  /** @type {number[]} */
  const ends = [];
  const found = [];
  let beyond = 0;
  for (const one of waits) {
    const free = ends.findIndex((end) => end <= one.begin);
    const row = free < 0 ? ends.length : free;
    if (row >= MOST_SLOTS) {
      beyond += 1;
      continue;
    }
    ends[row] = Math.max(one.left, one.begin);
    found.push({ one, row });
  }
  return { found, rows: ends.length, beyond };
}

/** Where a value between the ends of rising numbers stands between those of others. @param {number} value
 * @param {number[]} from @param {number[]} to */
function along(value, from, to) {
  const at = Math.max(1, from.findIndex((end, i) => value <= end || i === from.length - 1));
  const share = (value - from[at - 1]) / (from[at] - from[at - 1] || 1);
  return to[at - 1] + Math.min(1, Math.max(0, share)) * (to[at] - to[at - 1]);
}

/** @param {Stretch} stretch @param {number} room in pixels */
function timeTicks({ begin, end }, room) {
  const step = roundedUp((end - begin) / Math.max(2, Math.floor(room / 90)), [1, 2, 5]);
  const found = [];
  for (let tick = Math.ceil(begin / step) * step; tick <= end; tick += step) {
    found.push({ tick, words: group(String(Number(tick.toPrecision(10)))) });
  }
  return found;
}
