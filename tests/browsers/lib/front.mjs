// What stands between browser and gateway in a shop's network: a proxy with TLS that asks the gateway about each request as
// the ones in deploy/gates do, with a shop behind it. Cookies, and the rules of browsers about them, are those of a real site.
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { request as ask } from "node:http";
import { createServer } from "node:https";
import { connect } from "node:net";
import { join } from "node:path";

const EVENTS = /^\/_nowserving\/v1\/lines\/([^/]+)\/events$/;

/** A connection to the first gateway that takes one. */
async function reach(gateways) {
  for (const { origin } of gateways) {
    const { hostname, port } = new URL(origin);
    const socket = connect(port, hostname);
    try {
      await once(socket, "connect");
      return socket;
    } catch {
      // It is dead: the next one.
    }
  }
  throw new Error("no gateway answers");
}

export class Front {
  /** Streams that were asked for, by line. */
  opened = new Map();
  /** Requests of browsers to the gateway, as "GET /_nowserving/wait". */
  asked = [];
  /** In place of a browser that takes cookies and does not keep them. */
  dropsCookies = false;
  #streams = new Set();

  static async start(cluster, gateway) {
    const front = new Front();
    /** Those that it knows. The first one gets all requests while it lives. */
    front.gateways = [gateway];
    const [key, cert] = ["front.key", "front.cert"].map((name) => join(cluster.folder, name));
    execFileSync("openssl", ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
      "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], { stdio: "ignore" });
    front.server = createServer({ key: readFileSync(key), cert: readFileSync(cert) }, (request, response) => front.#answer(request, response));
    front.server.listen(0, "127.0.0.1");
    await once(front.server, "listening");
    front.origin = `https://127.0.0.1:${front.server.address().port}`;
    return front;
  }

  async stop() {
    this.server.closeAllConnections();
    this.server.close();
    await once(this.server, "close");
  }

  /** A network that forgets connections: the gateway sees them end, the browsers see nothing at all. */
  forget() {
    for (const stream of this.#streams) {
      stream.forgotten = true;
      stream.upstream.destroy();
    }
    this.#streams.clear();
  }

  #answer(request, response) {
    if (!request.url.startsWith("/_nowserving/")) return this.#shop(request, response);
    const { pathname } = new URL(request.url, this.origin);
    this.asked.push(`${request.method} ${pathname}`);
    const line = EVENTS.exec(pathname)?.[1];
    if (line) this.opened.set(line, (this.opened.get(line) ?? 0) + 1);
    const stream = { forgotten: false };
    stream.upstream = this.#send(request, { path: request.url, method: request.method }, response, (answer) => {
      this.#relay(answer, response);
      if (line) this.#streams.add(stream);
      answer.on("error", () => stream.forgotten || response.destroy());
      answer.on("aborted", () => stream.forgotten || response.destroy());
      answer.on("data", (chunk) => response.write(chunk)).on("end", () => response.end());
    });
    response.on("close", () => {
      this.#streams.delete(stream);
      stream.upstream.destroy();
    });
    request.pipe(stream.upstream);
  }

  /** Everything else is the shop's, once the gateway lets the visitor in. */
  #shop(request, response) {
    request.resume();
    const asking = { "x-forwarded-method": request.method, "x-forwarded-uri": request.url };
    this.#send(request, { path: "/gate/forward", method: "GET", more: asking }, response, (answer) => {
      if (answer.statusCode >= 300) {
        this.#relay(answer, response);
        return void answer.pipe(response);
      }
      answer.resume();
      const pass = answer.headers["nowserving-pass"] ? "with a pass" : "without a pass";
      response.writeHead(200, { "content-type": "text/html; charset=utf-8" });
      response.end(`<!doctype html><html lang="en"><title>The shop</title><h1>The shop</h1><p id="path">${request.url.replaceAll("<", "&lt;")}</p><p id="pass">${pass}</p>`);
    }).end();
  }

  #send(request, { path, method, more = {} }, response, answered) {
    const { host, ...headers } = request.headers;
    delete headers.connection;
    if (method !== request.method) delete headers["content-length"];
    Object.assign(headers, { "x-forwarded-for": request.socket.remoteAddress, "x-forwarded-proto": "https", "x-forwarded-host": host, host }, more);
    const createConnection = (_, made) => void reach(this.gateways).then((socket) => made(null, socket), made);
    const upstream = ask({ path, method, headers, createConnection }, answered);
    upstream.on("error", () => {
      if (response.headersSent) return;
      // As a proxy does when no gateway answers.
      response.writeHead(503, { "content-type": "text/plain", "retry-after": "1", "cache-control": "no-store" }).end("no gateway answers");
    });
    return upstream;
  }

  #relay(answer, response) {
    const headers = { ...answer.headers };
    for (const name of ["connection", "transfer-encoding", "keep-alive"]) delete headers[name];
    if (this.dropsCookies) delete headers["set-cookie"];
    response.writeHead(answer.statusCode, headers);
    response.flushHeaders();
  }
}
