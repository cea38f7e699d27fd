// What every widget of nbtriton shares: this text stands before each widget's own.
// @ts-check

/** @typedef {[string, Record<string, string>, (Spec | string)[]]} Spec a shape as Python sends it */

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
 * @param {string} tag @param {string} className @param {string} [text] @param {Record<string, string>} [attributes]
 * @returns {HTMLElement} */
function make(tag, className, text = "", attributes = {}) {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Make a button.
 * @param {string} text @param {(event: MouseEvent) => unknown} act @param {string} [label] where the text does not say it
 * @param {string} [className] @returns {HTMLButtonElement} */
function makeButton(text, act, label = "", className = "") {
  const button = /** @type {HTMLButtonElement} */ (make("button", className, text));
  button.type = "button";
  button.title = label;
  if (label) button.setAttribute("aria-label", label);
  button.addEventListener("click", act);
  return button;
}

/** A row of a table. @param {"th" | "td"} tag @param {string[]} texts of its cells */
function tableRow(tag, texts) {
  const row = /** @type {HTMLTableRowElement} */ (make("tr", ""));
  row.append(...texts.map((text) => make(tag, "", text)));
  return row;
}

/** A list of names and values. @param {[string, string][]} rows */
function detailList(rows) {
  const list = make("dl", "");
  for (const [name, value] of rows) list.append(make("dt", "", name), make("dd", "", value));
  return list;
}

/** Let keys do something in an element, and keep them from the notebook, which takes them for its cells.
 * @param {Element} element @param {(event: KeyboardEvent) => {[key: string]: (() => unknown) | undefined}} actions by key */
function onKeys(element, actions) {
  /** @param {any} event */
  const find = (event) =>
    event.ctrlKey || event.metaKey || event.altKey
      ? undefined
      : actions(event)[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  // Notebook 7 hears keys before the elements of the page, and leaves alone those with this attribute.
  const guard = (/** @type {any} */ event) => {
    event.target.toggleAttribute?.("data-lm-suppress-shortcuts", Boolean(find(event)));
    if (!element.isConnected) removeEventListener("keydown", guard, true);
  };
  element.addEventListener("focusin", () => addEventListener("keydown", guard, true));
  element.addEventListener("focusout", () => removeEventListener("keydown", guard, true));
  element.addEventListener("keydown", (/** @type {any} */ event) => {
    const act = find(event);
    if (!act) return;
    act();
    event.preventDefault();
    event.stopPropagation();
  });
}

/** The next of some digits times a power of ten. @param {number} value @param {number[]} digits ascending, from 1 */
function roundedUp(value, digits) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-6)));
  return ([...digits, 10].find((digit) => digit * power >= value * 0.9999) ?? 10) * power;
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

/** How many things there are, as Python's `counted`.
 * @param {number} number @param {string} noun @param {string} [plural] */
function counted(number, noun, plural) {
  return `${count(number)} ${number === 1 ? noun : plural ?? `${noun}s`}`;
}

/** perf_analyzer's percentile, as Python's. @param {number[]} ordered ascending @param {number} percent */
function percentile(ordered, percent) {
  return ordered.length ? ordered[Math.floor((percent / 100) * (ordered.length - 1) + 0.5)] : NaN;
}

/** @param {string} text */
function group(text) {
  const [whole, decimals] = text.replace("-", "\u2212").split(".");
  const apart = whole.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
  return decimals ? `${apart}.${decimals}` : apart;
}

/** An SVG that stands alone, in the colours that the page gives it.
 * @param {SVGElement} svg @returns {string} */
function standalone(svg) {
  const copy = /** @type {SVGElement} */ (svg.cloneNode(true));
  const style = getComputedStyle(svg);
  copy.style.colorScheme = onDark(svg) ? "dark" : "light";
  // The variables of hosts from which a picture takes its ink and its paper.
  copy.style.setProperty("--jp-ui-font-color1", style.getPropertyValue("--nbt-fg"));
  copy.style.setProperty("--jp-layout-color1", style.getPropertyValue("--nbt-bg"));
  return new XMLSerializer().serializeToString(copy);
}

/** A picture as PNG, with twice the resolution of a usual screen. @param {SVGElement} picture @returns {Promise<Blob | null>} */
async function png(picture) {
  const [width, height] = ["width", "height"].map((name) => 2 * Number(picture.getAttribute(name)));
  const image = new Image(width, height);
  image.src = `data:image/svg+xml,${encodeURIComponent(standalone(picture))}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  canvas.getContext("2d")?.drawImage(image, 0, 0, width, height);
  return new Promise((done) => canvas.toBlob(done));
}

/** Let the browser save a file. @param {string} name @param {Blob | null} blob */
function download(name, blob) {
  if (!blob) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

/** A menu that keeps what a view shows: its picture and its numbers as files, a cell to type as a copy.
 * @param {() => string} name of the files
 * @param {{svg?: () => SVGElement | null | undefined, csv?: () => string[][],
 *   cell?: () => string | Promise<string>, more?: Record<string, () => unknown>}} what each is asked when it is wanted
 * @returns {HTMLElement} */
function keepMenu(name, { svg, csv, cell, more = {} }) {
  const menu = /** @type {HTMLDetailsElement} */ (make("details", "nbt-keep"));
  const list = make("div", "nbt-keep-list");
  menu.append(make("summary", "", "Save"), list);
  /** @param {string} label @param {() => unknown} act */
  const offer = (label, act) => {
    list.append(makeButton(label, async () => {
      await act();
      menu.open = false;
    }));
  };
  if (svg) {
    /** @param {string} ending @param {(picture: SVGElement) => Blob | null | Promise<Blob | null>} written */
    const save = async (ending, written) => {
      const found = svg();
      if (found) download(`${name()}.${ending}`, await written(found));
    };
    offer("PNG", () => save("png", png));
    offer("SVG", () => save("svg", (found) => new Blob([standalone(found)], { type: "image/svg+xml" })));
  }
  if (csv) offer("CSV", () => download(`${name()}.csv`, new Blob([csvOf(csv())], { type: "text/csv" })));
  if (cell) offer("copy the configuration cell", async () => navigator.clipboard?.writeText(await cell()));
  for (const [label, act] of Object.entries(more)) offer(label, act);
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    /** @type {HTMLElement} */ (menu.firstElementChild).focus();
    event.stopPropagation();
  });
  menu.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !menu.contains(/** @type {Node} */ (event.relatedTarget))) menu.open = false;
  });
  return menu;
}

/** Rows of cells as CSV. @param {string[][]} rows */
function csvOf(rows) {
  const quoted = (/** @type {string} */ cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  return rows.map((row) => `${row.map(quoted).join(",")}\n`).join("");
}

/** A cell without the spaces between thousands, and with the minus of programs. @param {Element} cell */
function plain(cell) {
  return (cell.textContent ?? "").replaceAll("\u202f", "").replace("\u2212", "-");
}

/** The cells of a table as they are shown. @param {HTMLTableElement} table */
function tableRows(table) {
  return [...table.rows].map((row) => [...row.cells].map(plain));
}

/** Let a table be sorted by the column of a head: up at first, then down.
 * @param {HTMLTableCellElement} head @param {boolean} [downFirst] */
function sortable(head, downFirst = false) {
  const button = makeButton("", () => {
    const down = head.ariaSort === "none" ? downFirst : head.ariaSort === "ascending";
    for (const other of /** @type {HTMLElement} */ (head.parentElement).children) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    sortRows(/** @type {HTMLTableElement} */ (head.closest("table")));
  }, "", "nbt-sort");
  button.append(...head.childNodes);
  head.append(button);
  head.setAttribute("aria-sort", "none");
}

/** Sort the rows of a table, also after its numbers have changed. @param {HTMLTableElement} table */
function sortRows(table) {
  const head = /** @type {HTMLTableCellElement | null} */ (table.querySelector("th[aria-sort$=ending]"));
  if (!head) return;
  const body = table.tBodies[0];
  const text = (/** @type {HTMLTableRowElement} */ row) => plain(row.cells[head.cellIndex]);
  const rows = [...body.rows].sort((a, b) => {
    const apart = Number.parseFloat(text(a)) - Number.parseFloat(text(b)) || text(a).localeCompare(text(b));
    return head.ariaSort === "ascending" ? apart : -apart;
  });
  if (rows.some((row, at) => body.rows[at] !== row)) body.append(...rows);
}

/** Every third frame is acknowledged, as the publisher expects. */
const ACK_EVERY = 3;
/** How often a page says that it is there, while nothing is drawn. */
const HERE_MS = 10000;
/** A kernel that moves something says so every second. */
const SILENT_MS = 3000;

/** The time of day of a moment in the past. @param {number} ago_ms */
function clock(ago_ms) {
  const at = new Date(Date.now() - ago_ms);
  return [at.getHours(), at.getMinutes(), at.getSeconds()]
    .map((part) => String(part).padStart(2, "0"))
    .join(":");
}

/** Whether an element, or what stands behind it, is dark: VS Code's paper is white in every theme, and covered.
 * @param {Element} element */
function onDark(element) {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  // A host may keep a widget in a shadow tree.
  for (let at = /** @type {any} */ (element); pen && at; at = at.parentElement ?? at.getRootNode().host) {
    // Painted: a colour has many notations.
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = getComputedStyle(at).backgroundColor;
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
    if (alpha > 127) return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 128;
  }
  return getComputedStyle(document.documentElement).colorScheme.includes("dark")
    && matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Send to the kernel, and return whether that was possible: a host throws where the kernel restarts or has died.
 * @param {Model} model @param {object} content */
function send(model, content) {
  try {
    model.send(content);
    return true;
  } catch {
    return false;
  }
}

/** Ask the kernel something. @param {Model} model @param {Record<string, unknown>} content
 * @param {(reply: any, buffers: DataView[]) => void} show @returns {boolean} whether that was possible */
function ask(model, content, show) {
  const question = Math.random();
  const onReply = (/** @type {any} */ reply, /** @type {DataView[]} */ buffers) => {
    if (reply.question !== question) return;
    model.off("msg:custom", onReply);
    show(reply, buffers);
  };
  model.on("msg:custom", onReply);
  const sent = send(model, { ...content, question });
  if (!sent) model.off("msg:custom", onReply);
  return sent;
}

/** The cell that configures the first of some names that is a loaded model.
 * @param {Model} model @param {(string | undefined)[]} names @returns {Promise<string>} */
function configurationCell(model, names) {
  return new Promise((done) => ask(model, { kind: "cell", names: names.filter(Boolean) }, ({ text }) => done(text)));
}

/** Give an element the colours of its page, also when it comes into the page later, and when the theme changes.
 * @param {HTMLElement} root @param {() => void} [changed] @returns {() => void} ends it */
function followTheme(root, changed) {
  const dark = () => {
    root.style.colorScheme = onDark(root) ? "dark" : "light";
  };
  const onTheme = () => {
    dark();
    changed?.();
  };
  // Hosts say their theme in attributes of these two.
  const themes = new MutationObserver(onTheme);
  for (const element of [document.documentElement, document.body]) {
    themes.observe(element, { attributes: true, attributeFilter: ["class", "data-jp-theme-light", "data-theme", "style"] });
  }
  const placed = new ResizeObserver(() => {
    if (!root.isConnected) return;
    placed.disconnect();
    onTheme();
  });
  if (!root.isConnected) placed.observe(root);
  dark();
  return () => {
    themes.disconnect();
    placed.disconnect();
  };
}

/** Draw after the named traits change, once per animation frame, and acknowledge frames.
 * Also says below the picture whether it rests, has failed, and when the kernel has gone.
 * A page in the background gets no animation frames; it draws on a (slow) timer instead.
 * @param {Model} model @param {string[]} names @param {() => void} draw
 * @param {HTMLElement} root of the widget @returns {() => void} */
function follow(model, names, draw, root) {
  const view = Math.random().toString(36).slice(2);
  const state = make("div", "nbt-state");
  state.setAttribute("aria-live", "polite");
  root.append(state);
  let waiting = false;
  let missed = false;
  let owed = 0;
  let over = false;
  let gone = false;
  let heard = performance.now();
  let rested = 0;
  const run = () => {
    if (over || !waiting) return;
    waiting = false;
    // A cell that is scrolled away is not in the page: nobody sees what is drawn there.
    missed = !root.isConnected;
    if (missed) return;
    draw();
    if (owed >= ACK_EVERY) {
      owed = 0;
      say("ack");
    }
  };
  const later = () => {
    if (waiting) return;
    waiting = true;
    if (document.hidden) setTimeout(run, 50);
    else requestAnimationFrame(run);
  };
  const hear = () => {
    heard = performance.now();
    gone = false;
    tell();
  };
  const onFrame = () => {
    owed += 1;
    hear();
    later();
  };
  const onRest = () => {
    hear();
    rested = model.get("resting") ? Date.now() : 0;
    tell();
  };
  const tell = () => {
    const silent = performance.now() - heard;
    const last = clock(silent);
    const failure = model.get("failure");
    if (gone) write(state, `kernel gone, stopped at ${last.slice(0, 5)}`);
    else if (failure) write(state, `this view has failed: ${failure}`);
    else if (model.get("resting")) {
      write(state, rested ? `at rest since ${clock(Date.now() - rested)}: nothing has moved for 10 s` : "at rest");
    } else if (silent > SILENT_MS) write(state, `kernel gone or held up, last heard at ${last}`);
    else write(state, "");
    root.classList.toggle("nbt-gone", gone || failure || (silent > SILENT_MS && !model.get("resting")));
  };
  const beat = setInterval(() => {
    if (!root.isConnected) return;
    tell();
    if (missed) later();
  }, 1000);
  // A timer of its own: a browser slows those of a hidden page down, and beats would be counted as slowly.
  const here = setInterval(() => {
    if (root.isConnected && !gone) say("here");
  }, HERE_MS);
  const onGone = () => {
    gone = true;
    tell();
  };
  /** @param {string} kind */
  const say = (kind) => {
    if (!send(model, { kind, view })) onGone();
  };
  /** @type {[string, () => void][]} */
  const events = [
    ...names.map((name) => /** @type {[string, () => void]} */ ([`change:${name}`, later])),
    ["change:frame", onFrame], ["change:beat", hear], ["change:failure", hear], ["change:resting", onRest],
    // The widget manager's word for a kernel that was restarted or has died.
    ["comm_live_update", onGone],
  ];
  for (const [event, act] of events) model.on(event, act);
  document.addEventListener("visibilitychange", run);
  const stopTheme = followTheme(root, later);
  draw();
  tell();
  say("open");
  return () => {
    over = true;
    clearInterval(beat);
    clearInterval(here);
    stopTheme();
    for (const [event, act] of events) model.off(event, act);
    document.removeEventListener("visibilitychange", run);
    if (!gone) send(model, { kind: "close", view });
  };
}

/** Draw as `follow` does, in the widest of the model's scenes that the page has room for: text keeps its size.
 * @param {Model} model @param {string[]} names @param {HTMLElement} root
 * @param {(scene: Spec | undefined) => void} rebuild called before `draw` when another scene is shown
 * @param {() => void} draw @returns {() => void} ends it, and removes the element */
function followScenes(model, names, root, rebuild, draw) {
  /** @type {Spec[] | undefined} */
  let scenes;
  let shown = -1;
  const all = () => {
    const found = /** @type {Spec[]} */ (model.get("scenes"));
    const best = widest(found, root);
    if (found !== scenes || best !== shown) {
      scenes = found;
      shown = best;
      rebuild(found[shown]);
    }
    draw();
  };
  const stop = follow(model, ["scenes", ...names], all, root);
  const sizes = new ResizeObserver(() => {
    if (widest(model.get("scenes"), root) !== shown) all();
  });
  sizes.observe(root);
  return () => {
    stop();
    sizes.disconnect();
    root.remove();
  };
}

/** @typedef {{model?: string, from_ns?: number, to_ns?: number, request?: number}} Selected */

/** Share the selection of all views of a kernel on this page: a trait of each, and an event between them.
 * @param {Model} model @param {() => void} changed called after any view has changed it */
function shareSelection(model, changed) {
  const get = () => /** @type {Selected} */ (model.get("selected") ?? {});
  /** @param {Selected} selection */
  const put = (selection) => {
    const same = /** @type {(keyof Selected)[]} */ (["model", "from_ns", "to_ns", "request"])
      .every((key) => (get()[key] ?? null) === (selection[key] ?? null));
    if (same) return;
    model.set("selected", selection);
    model.save_changes();
  };
  /** @param {object} what */
  const say = (what) => {
    document.dispatchEvent(new CustomEvent("nbt-select", { detail: { kernel: model.get("kernel"), ...what } }));
  };
  const onTrait = () => {
    changed();
    say({ selection: get() });
  };
  const onPage = (/** @type {any} */ { detail }) => {
    if (detail.kernel !== model.get("kernel")) return;
    if (detail.selection) put(detail.selection);
    else if (Object.keys(get()).length) say({ selection: get() });
  };
  model.on("change:selected", onTrait);
  document.addEventListener("nbt-select", onPage);
  // A view that opens later asks the others, once it is made.
  queueMicrotask(() => say({}));
  return {
    get,
    put,
    stop: () => {
      model.off("change:selected", onTrait);
      document.removeEventListener("nbt-select", onPage);
    },
  };
}

/** Keep in mind what has the focus in an element: taken out of the page and put in again, it has lost it.
 * @param {HTMLElement} host @returns {() => void} gives the focus back */
function keepFocus(host) {
  /** @type {HTMLElement | null} */
  let focused = null;
  host.addEventListener("focusin", (event) => {
    focused = /** @type {HTMLElement} */ (event.target);
  });
  host.addEventListener("focusout", (event) => {
    if (host.contains(/** @type {Node | null} */ (event.relatedTarget))) return;
    // A reader went elsewhere; an element that is taken out has gone by then, or has the focus again.
    queueMicrotask(() => {
      if (host.isConnected && !host.contains(document.activeElement)) focused = null;
    });
  });
  return () => {
    // Unless something else has taken it meanwhile.
    if (focused && document.activeElement?.contains(host)) focused.focus({ preventScroll: true });
  };
}

/** Show a widget in the place of its static form, wherever the page has that.
 * What a notebook saves is the static form, whatever the page makes of it.
 * @param {Model} model @param {(context: {model: Model, el: HTMLElement}) => () => void} show
 * @returns {() => void} */
function inPlace(model, show) {
  /** @type {{host: HTMLElement, stop: () => void, refocus: () => void}[]} */
  const shown = [];
  const places = document.getElementsByClassName(model.get("place") || "nbt-nowhere");
  const renewals = new MutationObserver(() => look());
  const look = () => {
    for (const place of places) {
      if ([...place.children].some((child) => child.classList.contains("nbt-host"))) continue;
      // The host renewed the static form: the live one moves into it, as it is.
      let one = shown.find(({ host }) => !host.isConnected);
      if (!one) {
        const host = make("div", "nbt-host");
        place.append(host);
        one = { host, stop: show({ model, el: host }), refocus: keepFocus(host) };
        shown.push(one);
      } else {
        one.host.parentElement?.classList.remove("nbt-on");
        place.append(one.host);
        one.refocus();
      }
      place.classList.add("nbt-on");
      if (place.parentElement) renewals.observe(place.parentElement, { childList: true });
    }
  };
  // The mark comes with the cell's next output, in a moment; a host without it may get it any time.
  let timer = 0;
  const later = () => {
    look();
    timer = setTimeout(later, shown.length ? 500 : 100);
  };
  later();
  return () => {
    clearTimeout(timer);
    renewals.disconnect();
    for (const { host, stop } of shown) {
      stop();
      host.parentElement?.classList.remove("nbt-on");
      host.remove();
    }
  };
}

/** What a widget's module exports: it can be displayed by the host, or take the place of its picture.
 * @param {(context: {model: Model, el: HTMLElement}) => () => void} render */
function widget(render) {
  return { render, initialize: (/** @type {{model: Model}} */ { model }) => inPlace(model, render) };
}

/** The place of the widest picture that the page has room for: text keeps its size.
 * @param {Spec[]} scenes @param {HTMLElement} root */
function widest(scenes, root) {
  return Math.max(0, scenes.findLastIndex((scene) => Number(scene[1].width) <= root.clientWidth - 8));
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
