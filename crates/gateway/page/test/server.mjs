// The gateway's part, made up: the page of any state, the status and the stream as the test says.
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT, json, languages, render } from "./render.mjs";

export const CSP = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
  + "form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const TYPES = { css: "text/css", js: "text/javascript", svg: "image/svg+xml" };

export class Gateway {
  streams = new Set();
  opened = 0;
  polls = 0;
  posts = [];
  shop = [];
  retry = 200;
  refuse = 0; // an answer instead of a stream
  limited = null; // an answer instead of the status
  down = false; // no answer at all
  status = null;

  constructor(options = {}) {
    this.options = options;
    this.server = createServer((request, response) => this.answer(request, response));
  }

  async listen(port = 0) {
    await new Promise((done) => this.server.listen(port, "127.0.0.1", done));
    this.origin = `http://127.0.0.1:${this.server.address().port}`;
    return this;
  }

  close() {
    this.cut();
    this.server.closeAllConnections();
    return new Promise((done) => this.server.close(done));
  }

  /** The present state, by the name of made-up data, or as it is. */
  set(preview, over = {}) {
    const { page, visit } = typeof preview === "string" ? json(join(ROOT, "preview", `${preview}.json`)) : preview;
    this.status = { page, ...visit, ...over };
    return this.status;
  }

  send(event, data) {
    for (const stream of this.streams) stream.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  }

  /** Goes to another state, as the line does. */
  go(event, preview, over) {
    this.send(event, this.set(preview, over));
  }

  cut() {
    for (const stream of this.streams) stream.destroy();
  }

  answer(request, response) {
    const url = new URL(request.url, this.origin);
    const end = (code, type, body, headers = {}) => response.writeHead(code, { "content-type": type, "cache-control": "no-store", ...headers }).end(body);
    const html = (code, body) => end(code, "text/html; charset=utf-8", body, { "content-security-policy": CSP });
    const lang = languages.includes(url.searchParams.get("lang")) ? url.searchParams.get("lang") : "en";
    if (this.down && !url.pathname.startsWith("/preview")) return request.socket.destroy();
    if (url.pathname === "/") {
      return html(200, `<!doctype html><html lang="en"><title>Previews</title><main><h1>Previews</h1><ul>${this.options.previews?.map((p) =>
        `<li>${p}: ${languages.map((l) => `<a href="/preview/${p}?lang=${l}">${l}</a>`).join(" ")}</li>`).join("")}</ul></main></html>`);
    }
    if (url.pathname.startsWith("/preview/")) {
      const refresh_off = url.searchParams.get("refresh") === "off";
      return html(503, render(url.pathname.slice(9), lang, { ...this.options, over: { refresh_off, ...this.over } }));
    }
    if (url.pathname === "/_nowserving/wait") {
      const { page, ...visit } = this.status;
      return html(503, render({ page, visit, refresh_s: 20 }, lang, { ...this.options, over: { refresh_off: url.searchParams.get("refresh") === "off", ...this.over } }));
    }
    if (url.pathname === "/_nowserving/enter" || url.pathname === "/_nowserving/leave") {
      let body = "";
      request.on("data", (chunk) => { body += chunk; });
      request.on("end", () => {
        this.posts.push([url.pathname.split("/").pop(), Object.fromEntries(new URLSearchParams(body))]);
        this.set(this.posts.at(-1)[0] === "leave" ? "left" : this.entered ?? "waiting");
        response.writeHead(303, { location: "/_nowserving/wait" }).end();
      });
      return;
    }
    if (url.pathname.endsWith("/status")) {
      this.polls += 1;
      return end(200, "application/json", JSON.stringify(this.limited ?? this.status));
    }
    if (url.pathname.endsWith("/events")) {
      this.opened += 1;
      if (this.refuse) return end(this.refuse, "application/problem+json", "{}");
      response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
      const kind = { admitted: "admitted", gone: "gone" }[this.status.state] ?? "phase";
      response.write(`retry: ${this.retry}\n\nevent: ${kind}\ndata: ${JSON.stringify(this.status)}\n\n`);
      this.streams.add(response);
      const beat = setInterval(() => response.write("event: beat\ndata: {}\n\n"), 15_000);
      response.on("close", () => { clearInterval(beat); this.streams.delete(response); });
      return;
    }
    if (url.pathname.startsWith("/_nowserving/page/")) {
      const file = url.pathname.slice("/_nowserving/page/".length);
      const dirs = [this.options.shop && join(this.options.shop, "assets"), join(ROOT, "assets")].filter(Boolean);
      for (const dir of dirs) {
        try {
          return end(200, TYPES[file.split(".").pop()], readFileSync(join(dir, file)), { "x-content-type-options": "nosniff" });
        } catch { /* the next one */ }
      }
    }
    if (url.pathname === "/checkout") {
      this.shop.push(url.search);
      return end(200, "text/html", "<!doctype html><html lang=en><title>Shop</title><main><h1>The shop</h1></main></html>");
    }
    end(404, "text/plain", "no such page");
  }
}
