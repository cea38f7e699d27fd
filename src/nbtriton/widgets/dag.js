/** @typedef {{id: string, label: string, kind: string, sublabel: string,
 *   details: [string, string][], next: string[], live: number}} DagNode */

const STATES = ["READY", "LOADING", "UNLOADING", "UNAVAILABLE"];

/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", "nbt-root nbt-dag");
  const finding = make("p", "nbt-dag-finding nbt-finding");
  const picture = make("div", "nbt-dag-picture");
  const details = make("div", "nbt-details");
  details.hidden = true;
  details.setAttribute("aria-live", "polite");
  finding.setAttribute("aria-live", "polite");
  root.append(finding, picture, details);
  el.append(root);

  /** @type {DagNode[]} */
  let nodes = [];
  /** @type {SVGElement[]} */
  let groups = [];
  /** @typedef {{right: number, text: SVGElement | null, plate: SVGElement | null}} Badge */
  /** @type {Map<number, Badge>} */
  let badges = new Map();
  /** The node whose details are open. */
  let opened = "";

  /** @param {Spec | undefined} scene */
  const build_all = (scene) => {
    if (!scene) return;
    const focused = groups.findIndex((group) => group === document.activeElement);
    const before = focused >= 0 ? nodes[focused].id : "";
    nodes = model.get("nodes");
    const figure = build(scene);
    // The nodes inside are there for the keyboard, which an image would hide.
    figure.setAttribute("role", "group");
    picture.replaceChildren(figure);
    groups = nodes.map(({ id }) => /** @type {SVGElement} */ (figure.querySelector(`[data-node="${CSS.escape(id)}"]`)));
    badges = new Map();
    groups.forEach((group, i) => {
      group.setAttribute("tabindex", i ? "-1" : "0");
      group.setAttribute("role", "button");
      group.setAttribute("aria-expanded", String(nodes[i].id === opened));
      group.setAttribute("aria-label", said(nodes[i]));
    });
    if (before) focus(nodes.findIndex((node) => node.id === before));
  };

  /** Shares, lines and details of the models, widths of the tensors: once a second. */
  const draw_traffic = () => {
    write(finding, model.get("finding"));
    finding.hidden = !model.get("finding");
    const traffic = model.get("traffic");
    nodes.forEach((node, i) => {
      const [share, line, rows] = traffic[node.live] ?? [];
      if (line === undefined) return;
      node.details = rows;
      write(groups[i].querySelector(".nbt-traffic"), line);
      const box = /** @type {SVGElement} */ (groups[i].querySelector(".nbt-box"));
      const filled = Number(box.getAttribute("width")) * Math.min(1, share);
      groups[i].querySelector(".nbt-share")?.setAttribute("width", filled.toFixed(1));
    });
    const widths = model.get("widths");
    picture.querySelectorAll(".nbt-edge:not(.nbt-call) path:first-of-type").forEach((path) => {
      const at = Number(path.parentElement?.getAttribute("data-edge"));
      path.setAttribute("stroke-width", String(widths[at] ?? 1.5));
    });
    const at = nodes.findIndex((node) => node.id === opened);
    if (at >= 0) fill_details(nodes[at]);
  };

  /** @param {DagNode} node */
  const said = (node) => [node.label, node.kind, node.sublabel].filter(Boolean).join(", ");

  /** A plate above a model, for what waits and runs there; a line of a chain has no room for one.
   * @param {SVGElement} group @returns {Badge} */
  const badge = (group) => {
    if (group.closest(".nbt-chain")) return { right: 0, text: null, plate: null };
    const box = /** @type {SVGElement} */ (group.querySelector(".nbt-box"));
    const right = Number(box.getAttribute("x")) + Number(box.getAttribute("width"));
    const y = Number(box.getAttribute("y"));
    const plate = build(["rect", { rx: "9", height: "18", y: String(y - 21), class: "nbt-plate" }, []]);
    const text = build(["text", { y: String(y - 8), "text-anchor": "middle", "font-size": "11" }, []]);
    const all = build(["g", { class: "nbt-badge" }, []]);
    all.append(plate, text);
    group.append(all);
    return { right, text, plate };
  };

  const draw_live = () => {
    const next = reader(model.get("frame"));
    if (!next.left()) return;
    if (!badges.size) {
      groups.forEach((group, i) => {
        if (nodes[i].live >= 0) badges.set(i, badge(group));
      });
    }
    next();
    const live = Array.from({ length: next() }, () => [next(), next(), next()]);
    for (const [i, parts] of badges) {
      const [queued, executing, state] = live[nodes[i].live] ?? [0, 0, 0];
      const busy = executing > 0;
      const name = STATES[state];
      const text =
        name === "READY" ? `${count(queued)} queued · ${count(executing)} running` : name;
      const group = groups[i];
      if (parts.text) write(parts.text, text);
      else if (queued > 0 || name !== "READY") write(group.querySelector(".nbt-traffic"), text);
      group.classList.toggle("nbt-busy", busy);
      group.classList.toggle("nbt-waiting", queued > 0);
      group.classList.toggle("nbt-down", name !== "READY");
      group.setAttribute("data-queued", String(queued));
      group.setAttribute("data-executing", String(executing));
      group.setAttribute("aria-label", `${said(nodes[i])}, ${text}`);
      for (const edge of picture.querySelectorAll(".nbt-edge")) {
        if (edge.getAttribute("data-target") === nodes[i].id) edge.classList.toggle("nbt-flow", busy);
      }
      if (!parts.text || !parts.plate) continue;
      // The widest advance at this size; measuring would force a layout in every frame.
      const width = Math.max(40, text.length * 6.6) + 14;
      parts.text.setAttribute("x", String(parts.right - width / 2));
      parts.plate.setAttribute("x", String(parts.right - width));
      parts.plate.setAttribute("width", String(width));
    }
  };

  const draw = () => {
    draw_traffic();
    draw_live();
    mark();
  };

  /** @param {DagNode} node */
  const fill_details = (node) => {
    const list = detailList([["kind", node.kind], ...node.details]);
    if (details.querySelector("dl")?.textContent === list.textContent) return;
    details.replaceChildren(make("strong", "", node.label), list);
  };
  /** @param {number} i */
  const open = (i) => {
    const share = nodes[i].live >= 0 && selection.get().model !== nodes[i].label;
    if (share) selection.put({ ...selection.get(), model: nodes[i].label });
    if (opened === nodes[i].id) return;
    close_details();
    fill_details(nodes[i]);
    details.hidden = false;
    groups[i].setAttribute("aria-expanded", "true");
    opened = nodes[i].id;
  };
  const shut = () => {
    close_details();
    const { model: only, ...rest } = selection.get();
    if (only) selection.put(rest);
  };
  const close_details = () => {
    details.hidden = true;
    details.replaceChildren();
    const at = nodes.findIndex((node) => node.id === opened);
    if (at >= 0) groups[at].setAttribute("aria-expanded", "false");
    opened = "";
  };
  // The box of the model that is selected, here or elsewhere, is marked.
  const selection = shareSelection(model, () => mark());
  const mark = () => {
    const only = selection.get().model;
    for (const [i, group] of groups.entries()) group.classList.toggle("nbt-only", nodes[i].label === only && nodes[i].live >= 0);
  };
  /** @param {number} i */
  const focus = (i) => {
    if (i < 0 || i >= groups.length) return;
    for (const [k, group] of groups.entries()) group.setAttribute("tabindex", k === i ? "0" : "-1");
    groups[i].focus();
  };

  /** @param {number} i */
  const toggle = (i) => (opened === nodes[i].id ? shut() : open(i));
  /** @param {Event} event */
  const at = (event) => groups.indexOf(/** @type {any} */ (/** @type {Element} */ (event.target).closest("[data-node]")));
  onKeys(picture, (event) => {
    const i = at(event);
    if (i < 0) return {};
    return {
      ArrowRight: () => focus(nodes.findIndex((node) => node.id === nodes[i].next[0])),
      ArrowLeft: () => focus(nodes.findIndex((node) => node.next.includes(nodes[i].id))),
      ArrowDown: () => focus(i + 1),
      ArrowUp: () => focus(i - 1),
      Home: () => focus(0),
      End: () => focus(groups.length - 1),
      Enter: () => toggle(i),
      " ": () => toggle(i),
      Escape: shut,
    };
  });
  picture.addEventListener("click", (event) => {
    const i = at(event);
    if (i < 0) return;
    toggle(i);
    focus(i);
  });
  const csv = () => {
    const names = [...new Set(nodes.flatMap((node) => node.details.map(([name]) => name)))];
    return [["name", "kind", ...names], ...nodes.map((node) => {
      const values = new Map(node.details);
      return [node.label, node.kind, ...names.map((name) => values.get(name) ?? "")];
    })];
  };
  const name = () => nodes.find((node) => node.kind === "ensemble")?.label ?? nodes.find((node) => node.live >= 0)?.label;
  details.after(keepMenu(() => `${name() ?? "graph"}-graph`, {
    svg: () => picture.querySelector("svg"), csv, cell: () => configurationCell(model, [selection.get().model, name()]),
  }));

  const stop = followScenes(model, ["traffic", "widths", "finding"], root, build_all, draw);
  return () => {
    stop();
    selection.stop();
  };
}

export default widget(render);
