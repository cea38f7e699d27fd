// What every widget of nbtriton shares: this text stands before each widget's own.
// @ts-check

/** @typedef {[string, Record<string, string>, (Spec | string)[]]} Spec a shape as Python sends it */
/** @typedef {{get(name: string): any, on(event: string, call: () => void): void,
 *   off(event: string, call: () => void): void, send(content: object): void}} Model */

const SVG = "http://www.w3.org/2000/svg";

/** Build an SVG element from the shape that Python sends.
 * @param {Spec} spec @returns {SVGElement} */
function build([tag, attributes, children]) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  for (const child of children) element.append(typeof child === "string" ? child : build(child));
  return /** @type {SVGElement} */ (element);
}

/** Make an HTML element.
 * @param {string} tag @param {string} className @param {string} [text] @returns {HTMLElement} */
function make(tag, className, text) {
  const element = document.createElement(tag);
  element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Write text only where it changed: a screen reader and the layout are left alone otherwise.
 * @param {Element | null} element @param {string} text */
function write(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

/** Three significant digits, thousands apart, as Python's `measure`.
 * @param {number} value */
function measure(value) {
  if (!Number.isFinite(value)) return "\u2013";
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(Number(value.toPrecision(3))))));
  return group(Number(value.toPrecision(3)).toFixed(digits));
}

/** A whole number, thousands apart. @param {number} value */
function count(value) {
  return group(Math.round(value).toString());
}

/** @param {string} text */
function group(text) {
  const [whole, decimals] = text.split(".");
  const apart = whole.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
  return decimals ? `${apart}.${decimals}` : apart;
}

/** Draw after the named traits change, once per animation frame, and acknowledge each frame.
 * A page in the background gets no animation frames; it draws on a (slow) timer instead.
 * @param {Model} model @param {string[]} names @param {() => void} draw @returns {() => void} */
function follow(model, names, draw) {
  const view = Math.random().toString(36).slice(2);
  let waiting = false;
  let owed = false;
  let over = false;
  const run = () => {
    if (over || !waiting) return;
    waiting = false;
    draw();
    if (owed) model.send({ kind: "ack", view });
    owed = false;
  };
  const later = () => {
    if (waiting) return;
    waiting = true;
    if (document.hidden) setTimeout(run, 50);
    else requestAnimationFrame(run);
  };
  const onFrame = () => {
    owed = true;
    later();
  };
  for (const name of names) model.on(`change:${name}`, later);
  model.on("change:frame", onFrame);
  document.addEventListener("visibilitychange", run);
  draw();
  model.send({ kind: "open", view });
  return () => {
    over = true;
    for (const name of names) model.off(`change:${name}`, later);
    model.off("change:frame", onFrame);
    document.removeEventListener("visibilitychange", run);
    model.send({ kind: "close", view });
  };
}

/** The numbers of a frame: little-endian float64, whatever the offset of the buffer.
 * @param {DataView | undefined} buffer @returns {(() => number) & {left: () => number}} */
function reader(buffer) {
  let at = 0;
  const size = buffer ? buffer.byteLength : 0;
  const next = () => {
    if (!buffer || at + 8 > size) return 0;
    const value = buffer.getFloat64(at, true);
    at += 8;
    return value;
  };
  return Object.assign(next, { left: () => (size - at) / 8 });
}
