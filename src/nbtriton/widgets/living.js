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
    const look = () => enlivenAll(document, askKernel);
    look();
    // A cell may show a chart any time, and a page may make it anew.
    const timer = setInterval(look, 300);
    return () => {
      clearInterval(timer);
      kernels.delete(model.get("place"));
    };
  },
};
