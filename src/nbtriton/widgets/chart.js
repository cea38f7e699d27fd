// A chart that Python drew, brought to life where it is: the same in a cell, in a saved file and while it grows.

/** Asks the kernel for the batches of a point; where there is no kernel, nobody answers.
 * @typedef {(chart: string, point: string, show: (scene: Spec) => void) => void} Ask */

/** Bring a chart to life. What is drawn anew later is found by `look`.
 * @param {HTMLElement} root with pictures, and perhaps tables whose rows are the points @param {Ask} [batchesOf]
 * @returns {{look: () => void}} */
function enliven(root, batchesOf) {
  root.classList.add("nbt-on");
  /** The words of each point: its series, its load, its figures. @type {Map<string, string[]>} */
  const words = new Map();
  /** The series that are hidden. @type {Set<string>} */
  const hidden = new Set();
  let opened = "";
  let byThroughput = false;
  // Of a picture in HTML only what is added here has the style of widgets.
  const paper = root.classList.contains("nbt-root") ? "" : "nbt-root ";
  const cells = JSON.parse(root.dataset.cells ?? "{}");
  const tip = make("div", `${paper}nbt-tip`);
  tip.hidden = true;
  const bar = make("div", `${paper}nbt-chart-bar nbt-bar`);
  const axis = makeButton("", () => {
    byThroughput = !byThroughput;
    spread();
    cross(null);
  });
  const details = make("div", `${paper}nbt-details`);
  details.hidden = true;
  details.setAttribute("aria-live", "polite");

  /** @template {Element} T @param {string} selector @returns {T[]} */
  const all = (selector) => /** @type {any} */ ([...root.querySelectorAll(selector)]);
  const shown = () => all("svg").find((svg) => svg.getClientRects().length);
  /** @param {Element} point */
  const keyOf = (point) => /** @type {SVGElement} */ (point).dataset.point ?? "";
  /** @param {Element} element */
  const seriesOf = (element) => /** @type {SVGElement} */ (element.closest("[data-series]"))?.dataset.series ?? "";
  /** @param {Element} element @param {"data-at" | "data-box"} name */
  const numbers = (element, name) => (element.getAttribute(name) ?? "").split(" ").map(Number);
  /** The figures of a point by name. @param {string} key @returns {[string, string][]} */
  const figures = (key) =>
    (words.get(key) ?? []).slice(1).map((row) => {
      const at = row.indexOf(": ");
      return [row.slice(0, at), row.slice(at + 2)];
    });

  /** Make what is drawn answer: also what was drawn since. */
  const look = () => {
    for (const title of all("svg > title")) title.remove();
    for (const svg of all("svg")) {
      // What is inside is there for the keyboard, which an image would hide.
      svg.setAttribute("role", "group");
      svg.querySelectorAll(".nbt-point").forEach((point, i) => {
        // A browser would show it a second later, over the figures at the crosshair.
        const title = point.querySelector("title");
        if (title) words.set(keyOf(point), (title.textContent ?? "").split("\n"));
        title?.remove();
        point.setAttribute("role", "button");
        point.setAttribute("aria-label", (words.get(keyOf(point)) ?? []).join(", "));
        point.setAttribute("aria-expanded", String(keyOf(point) === opened));
        point.setAttribute("tabindex", i ? "-1" : "0");
      });
      svg.querySelectorAll(".nbt-legend").forEach((entry) => {
        entry.setAttribute("role", "button");
        entry.setAttribute("tabindex", "0");
        entry.setAttribute("aria-label", `${seriesOf(entry)}: click or Enter hides it, with shift shows it alone`);
      });
    }
    all("tr[data-point]").forEach((row) => {
      if (!row.hasAttribute("tabindex")) row.setAttribute("tabindex", row.previousElementSibling ? "-1" : "0");
    });
    for (const head of /** @type {HTMLTableCellElement[]} */ (all("th"))) {
      if (!head.querySelector("button") && head.closest("table")?.querySelector("[data-point]")) sortable(head);
    }
    hide();
    bar.hidden = !shown();
    axis.hidden = !root.querySelector(".nbt-panels");
    if (!axis.hidden) spread();
  };

  const hide = () => {
    const off = new Set();
    for (const element of all("[data-series]")) {
      const is = hidden.has(seriesOf(element));
      element.classList.toggle("nbt-off", is);
      if (element.classList.contains("nbt-legend")) element.setAttribute("aria-pressed", String(!is));
      for (const point of is ? element.querySelectorAll(".nbt-point") : []) off.add(keyOf(point));
    }
    for (const row of all("tr[data-point]")) row.classList.toggle("nbt-off", off.has(keyOf(row)));
  };
  /** Hide a series or show it again; `alone` shows it without the others, or all of them again.
   * @param {string} series @param {boolean} alone */
  const choose = (series, alone) => {
    const others = new Set(all(".nbt-legend").map(seriesOf).filter((one) => one !== series));
    if (alone) {
      const already = !hidden.has(series) && [...others].every((one) => hidden.has(one));
      hidden.clear();
      for (const one of already ? [] : others) hidden.add(one);
    } else if (!hidden.delete(series)) hidden.add(series);
    hide();
  };

  /** Light a point, its row of each table, and what has the same load. @param {string} key */
  const light = (key) => {
    for (const element of all("[data-point]")) element.classList.toggle("nbt-lit", key !== "" && keyOf(element) === key);
  };
  /** Draw the crosshair at the load of a point, with a line of figures for each series.
   * @param {Element | null | undefined} point */
  const cross = (point) => {
    for (const line of all(".nbt-cross")) line.remove();
    tip.hidden = !point;
    const svg = point?.closest("svg");
    if (!point || !svg) return;
    const load = point.getAttribute("data-load");
    const [x] = numbers(point, "data-at");
    const pair = point.closest(".nbt-panels") ?? svg;
    // In the other panel of a load axis too.
    for (const panel of pair.querySelectorAll(".nbt-panel")) {
      if (panel !== point.closest(".nbt-panel") && byThroughput) continue;
      const [, top, , bottom] = numbers(panel, "data-box");
      panel.prepend(build(["path", { class: "nbt-cross", d: `M${x + moved(point)} ${top}V${bottom}` }, []]));
    }
    const panel = /** @type {Element} */ (point.closest(".nbt-panel") ?? svg);
    const near = load === null ? [point] : [...panel.querySelectorAll(`.nbt-series:not(.nbt-off) .nbt-point`)]
      .filter((one) => one.getAttribute("data-load") === load);
    const table = make("table", "");
    for (const one of near) {
      const row = make("tr", "");
      const mark = make("td", "", "■");
      const line = panel.closest("svg")?.querySelector(`.nbt-legend[data-series="${CSS.escape(seriesOf(one))}"] path`);
      mark.style.color = getComputedStyle(line ?? one.closest(".nbt-series")?.querySelector(".nbt-line") ?? one).stroke;
      const [name] = words.get(keyOf(one)) ?? [""];
      row.append(mark, make("td", "", name));
      for (const [what, value] of figures(keyOf(one))) {
        if (what === "throughput") row.append(make("td", "", value));
        else if (/^p\d/.test(what)) row.append(make("td", "", `${what} ${value}`));
        else if (what === "outcome" && !["stable", "predicted"].includes(value)) row.append(make("td", "", value));
      }
      table.append(row);
    }
    const title = figures(keyOf(point))[0] ?? ["", ""];
    tip.replaceChildren(make("strong", "", `${title[0]} ${title[1]}`), table);
    const frame = /** @type {HTMLElement} */ (svg.parentElement);
    frame.classList.add("nbt-frame");
    frame.append(tip);
    // On the side that has more room, and at the end of the panel that is farther from the point.
    const [, top, , bottom] = numbers(panel, "data-box");
    const [, y] = numbers(point, "data-at");
    const middle = x + moved(point);
    const { offsetWidth: wide, offsetHeight: high } = tip;
    const left = middle < svg.getBoundingClientRect().width / 2 ? middle + 14 : middle - 14 - wide;
    tip.style.left = `${Math.max(0, Math.min(left, frame.clientWidth - wide))}px`;
    tip.style.top = `${y < (top + bottom) / 2 ? bottom - high - 2 : top + 2}px`;
  };
  /** How far the other axis moves a point to the right. @param {Element} point */
  const moved = (point) => Number(/** @type {SVGElement} */ (point).dataset.moved ?? 0);

  /** Draw the latency against the throughput, or against the load again: a panel's box and the other
   * panel's heights say where each point belongs. */
  const spread = () => {
    for (const pair of all(".nbt-panels")) {
      const [above, below] = pair.querySelectorAll(".nbt-panel");
      const [left, , right, foot] = numbers(below, "data-box");
      const [, top, , bottom] = numbers(above, "data-box");
      /** @param {number} y of a throughput in its panel */
      const across = (y) => left + 18 + (bottom - y) / (bottom - top) * (right - left - 36);
      /** @type {Map<string, number>} */
      const by = new Map();
      for (const point of above.querySelectorAll(".nbt-point")) by.set(keyOf(point), across(numbers(point, "data-at")[1]));
      for (const series of below.querySelectorAll(".nbt-series")) {
        const places = [...series.querySelectorAll(".nbt-point")].map((point) => {
          const [x, y] = numbers(point, "data-at");
          const dx = byThroughput ? (by.get(keyOf(point)) ?? x) - x : 0;
          point.setAttribute("transform", `translate(${dx.toFixed(1)} 0)`);
          point.setAttribute("data-moved", dx.toFixed(1));
          below.querySelector(`[data-ring="${CSS.escape(keyOf(point))}"]`)
            ?.setAttribute("transform", `translate(${dx.toFixed(1)} 0)`);
          return `${(x + dx).toFixed(1)} ${y}`;
        });
        series.querySelector(".nbt-line")?.setAttribute("d", `M${places.join("L")}`);
      }
      below.querySelector(".nbt-ticks")?.remove();
      /** @type {SVGElement | null} */ (below.querySelector(".nbt-loads"))?.style.setProperty("display", byThroughput ? "none" : "");
      if (byThroughput) {
        const ticks = [...above.querySelectorAll("text[text-anchor=end]")].map((text) =>
          /** @type {Spec} */ (["text", { x: String(across(Number(text.getAttribute("y")) - 4)), y: String(foot + 15),
            "font-size": "11", "text-anchor": "middle", class: "nbt-f-muted" }, [text.textContent ?? ""]]));
        below.append(build(["g", { class: "nbt-ticks" }, ticks]));
      }
      const caption = below.querySelector("text");
      const load = pair.querySelector("text")?.textContent?.match(/, against .*/)?.[0] ?? "";
      if (caption && load) {
        write(caption, (caption.textContent ?? "").replace(/, against .*/, byThroughput ? ", against throughput, infer/s" : load));
      }
    }
    write(axis, `latency against ${byThroughput ? "load" : "throughput"}`);
  };

  /** Open what is known of a point, or close it. @param {string} key */
  const toggle = (key) => {
    opened = opened === key ? "" : key;
    for (const point of all(".nbt-point")) point.setAttribute("aria-expanded", String(keyOf(point) === opened));
    details.hidden = !opened;
    if (!opened) return;
    const batches = make("div", "");
    details.replaceChildren(make("strong", "", (words.get(key) ?? [""])[0]), detailList(figures(key)), batches);
    const chart = /** @type {HTMLElement | null} */ (root.closest("[data-batches]"))?.dataset.batches;
    if (chart) batchesOf?.(chart, key, (scene) => batches.replaceChildren(build(scene)));
  };

  /** The point that is nearest to the pointer, across. @param {MouseEvent} event */
  const nearest = (event) => {
    const svg = /** @type {Element} */ (event.target).closest("svg");
    const to = svg?.getScreenCTM()?.inverse();
    if (!svg || !to) return null;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(to);
    const panel = [...svg.querySelectorAll(".nbt-panel")].find((one) => {
      const [left, top, right, bottom] = numbers(one, "data-box");
      return at.x >= left && at.x <= right && at.y >= top && at.y <= bottom;
    });
    let best = null;
    let least = Infinity;
    for (const point of panel?.querySelectorAll(".nbt-series:not(.nbt-off) .nbt-point") ?? []) {
      const [x, y] = numbers(point, "data-at");
      // Height decides between the points of one load only; without a load it counts as much.
      const apart = Math.hypot(x + moved(point) - at.x, (y - at.y) * (point.hasAttribute("data-load") ? 0.01 : 1));
      if (apart < least) [best, least] = [point, apart];
    }
    return best;
  };
  /** @param {Event} event @param {string} selector */
  const hit = (event, selector) => /** @type {SVGElement | null} */ (/** @type {Element} */ (event.target).closest(selector));

  /** @param {MouseEvent} event */
  const point = (event) => {
    const row = hit(event, "tr[data-point]");
    const near = row ? mark(keyOf(row)) : hit(event, ".nbt-point") ?? nearest(event);
    light(near ? keyOf(near) : "");
    cross(near);
  };
  /** The mark of a point in the picture that the page shows. @param {string} key */
  const mark = (key) => shown()?.querySelector(`.nbt-point[data-point="${CSS.escape(key)}"]`);
  root.addEventListener("pointermove", point);
  root.addEventListener("pointerdown", point);
  const leave = () => {
    light("");
    cross(null);
  };
  root.addEventListener("pointerleave", leave);
  root.addEventListener("focusin", (event) => {
    const on = hit(event, "[data-point]");
    light(on ? keyOf(on) : "");
    cross(on?.matches("tr") ? mark(keyOf(on)) : on);
  });
  root.addEventListener("focusout", (event) => {
    if (!event.relatedTarget || !root.contains(/** @type {Node} */ (event.relatedTarget))) leave();
  });
  root.addEventListener("click", (event) => {
    const legend = hit(event, ".nbt-legend");
    const near = hit(event, "[data-point]") ?? nearest(event);
    if (legend) choose(seriesOf(legend), event.shiftKey);
    else if (near) {
      toggle(keyOf(near));
      focus(near);
    }
  });
  // A touch has no shift.
  root.addEventListener("dblclick", (event) => {
    const legend = hit(event, ".nbt-legend");
    if (legend) choose(seriesOf(legend), true);
  });
  /** @param {Element | null | undefined} element */
  const focus = (element) => {
    if (!element) return;
    const peers = element.matches("tr") ? element.parentElement?.children : element.closest("svg")?.querySelectorAll(".nbt-point");
    for (const one of peers ?? []) one.setAttribute("tabindex", one === element ? "0" : "-1");
    /** @type {HTMLElement} */ (element).focus({ preventScroll: true });
  };
  onKeys(root, (event) => {
    const legend = hit(event, ".nbt-legend");
    const on = hit(event, "[data-point]");
    if (!legend && !on) return {};
    const enter = () => (legend ? choose(seriesOf(legend), event.shiftKey) : on && toggle(keyOf(on)));
    /** @param {number} by @param {boolean} across to the same load of the next series, instead of along the series */
    const step = (by, across) => {
      if (on?.matches("tr")) return focus(by > 0 ? on.nextElementSibling : on.previousElementSibling);
      const panel = across ? on?.closest(".nbt-panel") ?? on?.ownerSVGElement : on?.ownerSVGElement;
      const among = [...(panel?.querySelectorAll(".nbt-series:not(.nbt-off) .nbt-point") ?? [])]
        .filter((one) => !across || one.getAttribute("data-load") === on?.getAttribute("data-load"));
      focus(among[among.indexOf(/** @type {Element} */ (on)) + by]);
    };
    return {
      Enter: enter,
      " ": enter,
      ...(on && {
        Escape: () => (opened ? toggle(opened) : cross(null)),
        ArrowRight: () => step(1, false),
        ArrowLeft: () => step(-1, false),
        ArrowDown: () => step(1, true),
        ArrowUp: () => step(-1, true),
      }),
    };
  });

  const table = /** @type {HTMLTableElement | undefined} */ (all("table").at(-1));
  bar.append(axis, keepMenu(() => root.dataset.name || "chart", {
    svg: /** @type {() => SVGElement | undefined} */ (shown),
    ...(table ? { csv: () => tableRows(table) } : {}),
    ...(Object.keys(cells).length ? { cell: () => cells[opened] ?? Object.values(cells)[0] } : {}),
  }));
  (root.querySelector(".nbt-curve-picture") ?? root.querySelector("svg")?.closest(".nbt-fit") ?? root.querySelector("svg")?.parentElement)?.after(bar, details);
  look();
  return { look };
}

/** Bring to life what is not yet alive. @param {ParentNode} page @param {Ask} [batchesOf] */
function enlivenAll(page, batchesOf) {
  for (const chart of page.querySelectorAll(".nbt-chart:not(.nbt-on)")) {
    if (chart.querySelector("svg")) enliven(/** @type {HTMLElement} */ (chart), batchesOf);
  }
}
