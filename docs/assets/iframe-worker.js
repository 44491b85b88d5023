// A worker for pages that are opened as files, where browsers allow none: the script runs in a hidden
// frame. The site's search is written for a worker.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    const inner = frame.contentWindow;
    this.ready = new Promise((resolve) => {
      inner.document.open();
      inner.postMessage = (data) => this.tell(data);
      inner.importScripts = (...scripts) => scripts.reduce(
        (before, source) => before.then(() => load(inner, source)), Promise.resolve());
      inner.document.write("<html><body></body></html>");
      inner.document.close();
      load(inner, url).then(() => resolve(inner));
    });
    this.frame = frame;
  }
  tell(data) {
    const event = new MessageEvent("message", { data });
    this.dispatchEvent(event);
    if (this.onmessage) this.onmessage(event);
  }
  postMessage(data) {
    this.ready.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
  }
  terminate() {
    this.frame.remove();
  }
}

function load(inner, source) {
  return new Promise((resolve) => {
    const script = inner.document.createElement("script");
    script.src = source;
    script.onload = resolve;
    inner.document.body.append(script);
  });
}

if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = FrameWorker;
}
