// SPDX-License-Identifier: Apache-2.0
// Search for a site that is opened from a folder: browsers start no worker from a
// file, so the worker's script runs in a hidden frame. The plugin `offline` of the
// theme would load such a file from a server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", {data}));
      const script = this.inner.document.createElement("script");
      script.src = url;
      this.loaded = new Promise((done) => script.addEventListener("load", done));
      this.inner.document.body.append(script);
    }
    postMessage(data) {
      this.loaded.then(() =>
        this.inner.dispatchEvent(new MessageEvent("message", {data})));
    }
  };
}
