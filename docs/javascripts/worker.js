/* Search in a page that is opened from a folder: browsers start no Worker there, so an invisible frame takes its place.
   From a server, the browser's own Worker is used. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inner = this.frame.contentWindow
      inner.document.open()
      inner.document.write("<!doctype html><html><body></body></html>")
      inner.document.close()
      // What a worker's script calls: messages go to this page, and scripts are loaded one after the other.
      inner.postMessage = (data) => window.postMessage({ worker: url, data }, "*")
      const load = (source) =>
        new Promise((done, failed) => {
          const script = inner.document.createElement("script")
          script.src = source
          script.onload = done
          script.onerror = failed
          inner.document.body.appendChild(script)
        })
      inner.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
      this.ready = load(url)
      addEventListener("message", ({ data }) => {
        if (!data || data.worker !== url) return
        const message = new MessageEvent("message", { data: data.data })
        this.dispatchEvent(message)
        if (this.onmessage) this.onmessage(message)
      })
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) })))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
