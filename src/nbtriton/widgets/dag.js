/** @typedef {{id: string, label: string, kind: string, sublabel: string,
 *   details: [string, string][], next: string[], live: number}} DagNode */

const STATES = ["READY", "LOADING", "UNLOADING", "UNAVAILABLE"];

/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", "nbt-root nbt-dag");
  const picture = make("div", "nbt-dag-picture");
  const details = make("div", "nbt-dag-details");
  details.hidden = true;
  details.setAttribute("aria-live", "polite");
  root.append(picture, details);
  el.append(root);

  /** @type {DagNode[]} */
  let nodes = [];
  /** @type {SVGElement[]} */
  let groups = [];
  /** @type {Map<number, {right: number, text: SVGElement, plate: SVGElement}>} */
  let badges = new Map();
  /** @type {unknown} */
  let drawn = null;
  let opened = -1;

  const build_all = () => {
    nodes = model.get("nodes");
    const figure = build(model.get("scene"));
    // The nodes inside are there for the keyboard, which an image would hide.
    figure.setAttribute("role", "group");
    picture.replaceChildren(figure);
    const byId = new Map(
      [...figure.querySelectorAll("[data-node]")].map((g) => [g.getAttribute("data-node"), g]),
    );
    groups = nodes.map((node) => /** @type {SVGElement} */ (byId.get(node.id)));
    badges = new Map();
    groups.forEach((group, i) => {
      group.setAttribute("tabindex", i ? "-1" : "0");
      group.setAttribute("role", "button");
      group.setAttribute("aria-expanded", "false");
      group.setAttribute("aria-label", said(nodes[i]));
    });
    opened = -1;
    details.hidden = true;
  };

  /** @param {DagNode} node */
  const said = (node) => [node.label, node.kind, node.sublabel].filter(Boolean).join(", ");

  /** A plate above a model, for what waits and runs there. @param {SVGElement} group */
  const badge = (group) => {
    const box = /** @type {SVGElement} */ (group.querySelector(".nbt-box"));
    const right = Number(box.getAttribute("x")) + Number(box.getAttribute("width"));
    const y = Number(box.getAttribute("y"));
    const plate = build(["rect", { rx: "9", height: "18", y: String(y - 21), class: "nbt-plate" }, []]);
    const text = build([
      "text",
      { y: String(y - 8), "text-anchor": "middle", "font-size": "11" },
      [],
    ]);
    const all = build(["g", { class: "nbt-badge" }, []]);
    all.append(plate, text);
    group.append(all);
    return { right, text, plate };
  };

  const draw_live = () => {
    const next = reader(model.get("frame"));
    if (!next.left()) return;
    if (!badges.size) {
      groups.forEach((group, i) => nodes[i].live >= 0 && badges.set(i, badge(group)));
    }
    next();
    const live = Array.from({ length: next() }, () => [next(), next(), next()]);
    for (const [i, parts] of badges) {
      const [queued, executing, state] = live[nodes[i].live] ?? [0, 0, 0];
      const busy = executing > 0;
      const name = STATES[state];
      const text =
        name === "READY" ? `${count(queued)} queued · ${count(executing)} running` : name;
      write(parts.text, text);
      const group = groups[i];
      group.classList.toggle("nbt-busy", busy);
      group.classList.toggle("nbt-waiting", queued > 0);
      group.classList.toggle("nbt-down", name !== "READY");
      group.setAttribute("data-queued", String(queued));
      group.setAttribute("data-executing", String(executing));
      group.setAttribute("aria-label", `${said(nodes[i])}, ${text}`);
      // The widest advance at this size; measuring would force a layout in every frame.
      const width = Math.max(40, text.length * 6.6) + 14;
      parts.text.setAttribute("x", String(parts.right - width / 2));
      parts.plate.setAttribute("x", String(parts.right - width));
      parts.plate.setAttribute("width", String(width));
      for (const edge of picture.querySelectorAll(".nbt-edge")) {
        if (edge.getAttribute("data-target") === nodes[i].id) edge.classList.toggle("nbt-flow", busy);
      }
    }
  };

  const draw = () => {
    if (model.get("scene") !== drawn) {
      drawn = model.get("scene");
      build_all();
    }
    draw_live();
  };

  /** @param {number} i */
  const open = (i) => {
    shut();
    const node = nodes[i];
    details.replaceChildren(make("strong", "", node.label));
    const list = make("dl", "");
    for (const [name, value] of [["kind", node.kind], ...node.details]) {
      list.append(make("dt", "", name), make("dd", "", value));
    }
    details.append(list);
    details.hidden = false;
    groups[i].setAttribute("aria-expanded", "true");
    opened = i;
  };
  const shut = () => {
    details.hidden = true;
    if (opened >= 0) groups[opened].setAttribute("aria-expanded", "false");
    opened = -1;
  };
  /** @param {number} i */
  const focus = (i) => {
    if (i < 0 || i >= groups.length) return;
    groups.forEach((group, k) => group.setAttribute("tabindex", k === i ? "0" : "-1"));
    groups[i].focus();
  };

  /** @param {Event} event */
  const at = (event) =>
    groups.indexOf(
      /** @type {any} */ (/** @type {Element} */ (event.target).closest("[data-node]")),
    );
  /** @param {KeyboardEvent} event */
  const onKey = (event) => {
    const i = at(event);
    if (i < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const index = (/** @type {string | undefined} */ id) => nodes.findIndex((n) => n.id === id);
    const before = nodes.findIndex((n) => n.next.includes(nodes[i].id));
    const act = {
      ArrowRight: () => focus(index(nodes[i].next[0])),
      ArrowLeft: () => focus(before),
      ArrowDown: () => focus(i + 1),
      ArrowUp: () => focus(i - 1),
      Home: () => focus(0),
      End: () => focus(groups.length - 1),
      Enter: () => (opened === i ? shut() : open(i)),
      " ": () => (opened === i ? shut() : open(i)),
      Escape: shut,
    }[event.key];
    if (!act) return;
    act();
    // A notebook takes these keys for its cells.
    event.preventDefault();
    event.stopPropagation();
  };
  /** @param {MouseEvent} event */
  const onClick = (event) => {
    const i = at(event);
    if (i < 0) return;
    if (opened === i) shut();
    else open(i);
    focus(i);
  };
  picture.addEventListener("keydown", onKey);
  picture.addEventListener("click", onClick);

  const stop = follow(model, ["scene"], draw, root);
  return () => {
    stop();
    root.remove();
  };
}

export default widget(render);
