// What anywidget hands to a widget; here, as the scripts that a page gets import nothing.
type Model = import("@anywidget/types").AnyModel;
