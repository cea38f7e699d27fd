const page = /** @type {any} */ (globalThis);
page.nbtKernels ??= new Map();
/** By the kernel that drew a chart, who asks it: a page may have charts of several.
 * @type {Map<string, Model>} */
const kernels = page.nbtKernels;

/** @type {Ask} */
function askKernel(chart, point, show) {
  const model = kernels.get(chart.split("/")[0]);
  if (model) ask(model, { kind: "batches", chart, point }, ({ scene }) => show(scene));
}

export default {
  /** @param {{model: Model}} context */
  initialize({ model }) {
    kernels.set(model.get("place"), model);
    if (model.get("html")) return () => kernels.delete(model.get("place"));
    const look = () => enlivenAll(document, askKernel);
    look();
    // A cell may show a chart any time, and a page may make it anew.
    const timer = setInterval(look, 300);
    return () => {
      clearInterval(timer);
      kernels.delete(model.get("place"));
    };
  },
  /** One chart, where a host runs a script only in a widget's own element. @param {{model: Model, el: HTMLElement}} context */
  render({ model, el }) {
    const root = make("div", "nbt-root");
    root.innerHTML = /** @type {string} */ (model.get("html"));
    el.append(root);
    enlivenAll(root, askKernel);
    return followTheme(root);
  },
};
