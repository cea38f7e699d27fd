// One sentence in this time is what a person can listen to.
const SAY_MS = 5000;

/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", "nbt-root nbt-curve");
  const bar = make("div", "nbt-curve-bar");
  const line = make("div", "nbt-curve-line");
  const track = make("div", "nbt-curve-track");
  const done = make("div", "nbt-curve-done");
  const button = /** @type {HTMLButtonElement} */ (make("button", "nbt-curve-stop", "Stop"));
  const said = make("div", "nbt-hidden-text");
  const finding = make("p", "nbt-curve-finding");
  const picture = make("div", "nbt-curve-picture");
  const details = make("div", "nbt-details");
  details.hidden = true;
  details.setAttribute("aria-live", "polite");
  button.type = "button";
  said.setAttribute("role", "status");
  said.setAttribute("aria-live", "polite");
  track.setAttribute("role", "progressbar");
  track.setAttribute("aria-label", "progress of the sweep");
  track.setAttribute("aria-valuemin", "0");
  track.setAttribute("aria-valuemax", "100");
  track.append(done);
  const left = make("div", "nbt-curve-left");
  left.append(line, track);
  bar.append(left, button);
  root.append(bar, finding, picture, details, said);
  el.append(root);

  /** @type {unknown} */
  let drawn = null;
  let spoken = -Infinity;
  let shown = -1;
  /** The point whose details are open, as its place among all points. */
  let opened = -1;
  /** @type {SVGElement[]} */
  let points = [];

  /** @param {Spec | undefined} scene */
  const build_all = (scene) => {
    const focused = points.findIndex((point) => point === document.activeElement);
    picture.replaceChildren(...(scene ? [build(scene)] : []));
    // The points inside are there for the keyboard, which an image would hide.
    picture.querySelector("svg")?.setAttribute("role", "group");
    points = [...picture.querySelectorAll(".nbt-point")].map((p) => /** @type {SVGElement} */ (p));
    points.forEach((point, i) => {
      point.setAttribute("role", "button");
      point.setAttribute("aria-expanded", String(i === opened));
      point.setAttribute("aria-label", lines(point).join(", "));
      point.setAttribute("tabindex", i ? "-1" : "0");
    });
    if (focused >= 0) focus(focused);
  };
  /** @param {SVGElement} point */
  const lines = (point) => (point.querySelector("title")?.textContent ?? "").split("\n");
  /** @param {number} i */
  const focus = (i) => {
    if (i < 0 || i >= points.length) return;
    for (const [k, point] of points.entries()) point.setAttribute("tabindex", k === i ? "0" : "-1");
    points[i].focus();
  };
  /** Open the configuration and the figures of a point, or close them. @param {number} i */
  const toggle = (i) => {
    if (opened >= 0) points[opened]?.setAttribute("aria-expanded", "false");
    opened = opened === i ? -1 : i;
    details.hidden = opened < 0;
    if (opened < 0) return;
    points[i].setAttribute("aria-expanded", "true");
    const [name, ...rows] = lines(points[i]);
    const list = make("dl", "");
    for (const row of rows) {
      const at = row.indexOf(": ");
      list.append(make("dt", "", row.slice(0, at)), make("dd", "", row.slice(at + 2)));
    }
    details.replaceChildren(make("strong", "", name), list);
  };
  /** @param {Event} event */
  const at = (event) =>
    points.indexOf(
      /** @type {any} */ (/** @type {Element} */ (event.target).closest(".nbt-point")),
    );
  picture.addEventListener("click", (event) => {
    const i = at(event);
    if (i < 0) return;
    toggle(i);
    focus(i);
  });
  picture.addEventListener("keydown", (event) => {
    const i = at(event);
    if (i < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      ArrowRight: () => focus(i + 1),
      ArrowLeft: () => focus(i - 1),
      Home: () => focus(0),
      End: () => focus(points.length - 1),
      Enter: () => toggle(i),
      " ": () => toggle(i),
      Escape: () => opened >= 0 && toggle(opened),
    }[event.key];
    if (!act) return;
    act();
    // A notebook takes these keys for its cells.
    event.preventDefault();
    event.stopPropagation();
  });

  const draw = () => {
    const scenes = model.get("scenes");
    const best = widest(scenes, root);
    if (scenes !== drawn || best !== shown) {
      drawn = scenes;
      shown = best;
      build_all(scenes[best]);
    }
    // A picture begins with its finding; before there is one it is a sentence.
    finding.hidden = scenes.length > 0;
    write(finding, model.get("finding"));
    const running = model.get("running");
    const stopping = model.get("stopping");
    const fraction = model.get("fraction");
    write(line, model.get("progress") || (running ? "starting" : "done"));
    track.classList.toggle("nbt-unknown", running && fraction < 0);
    const percent = Math.round(Math.max(0, running ? fraction : 1) * 100);
    done.style.width = `${percent}%`;
    if (fraction < 0 && running) track.removeAttribute("aria-valuenow");
    else track.setAttribute("aria-valuenow", String(percent));
    button.hidden = !running;
    button.disabled = stopping;
    write(button, stopping ? "Stopping" : "Stop");
    const now = performance.now();
    if (now - spoken >= SAY_MS && model.get("finding")) {
      spoken = now;
      write(said, model.get("finding"));
    }
  };

  const onStop = () => {
    button.disabled = true;
    write(button, "Stopping");
    send(model, { kind: "stop" });
  };
  button.addEventListener("click", onStop);
  return followScenes(model, ["scenes", "finding", "progress", "fraction", "running", "stopping"], draw, root, () => shown);
}

export default widget(render);
