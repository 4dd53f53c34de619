import type { Nats } from "./connection.js";
import { Connection } from "./connection.js";
import { Feeds } from "./feed.js";
import type { LimiterOptions } from "./limiter.js";
import { Limiter } from "./limiter.js";
import { Line } from "./line.js";
import { checkedPrefix } from "./subjects.js";

/** The options of a client. */
export interface ClientOptions {
  /** The first word or words of every subject; default `nowserving`. */
  prefix?: string;
  /** How long a call may take, all its attempts together; default 10,000. */
  deadlineMs?: number;
  /**
   * Replies come to subjects that begin with this word or words; default: what the connection was made with. A role that
   * may hear its own replies alone needs its own, as `_INBOX.backends`.
   */
  inboxPrefix?: string;
}

/**
 * A cluster, over a NATS connection that stays yours to close:
 *
 *     const nc = await connect({ servers: "nats://127.0.0.1:4222" });
 *     const line = new Client(nc).line("shop-1");
 *
 * Make one client for a connection, and share it.
 */
export class Client {
  readonly prefix: string;
  /** How long a call may take, all its attempts together. */
  readonly deadlineMs: number;
  readonly #connection: Connection;
  readonly #feeds: Feeds;

  constructor(nats: Nats, options: ClientOptions = {}, shared?: { connection: Connection; feeds: Feeds }) {
    this.prefix = checkedPrefix(options.prefix ?? "nowserving");
    this.deadlineMs = options.deadlineMs ?? 10_000;
    this.#connection = shared?.connection ?? new Connection(nats, this.prefix, options.inboxPrefix);
    this.#feeds = shared?.feeds ?? new Feeds(this.#connection);
  }

  /** The NATS connection underneath. */
  get nats(): Nats {
    return this.#connection.nats;
  }

  /** The same client with another deadline for its calls. */
  withDeadline(ms: number): Client {
    const shared = { connection: this.#connection, feeds: this.#feeds };
    return new Client(this.nats, { prefix: this.prefix, deadlineMs: ms }, shared);
  }

  /** A line, for its users. Sends no request. Throws `bad_argument` if `name` is not `[A-Za-z0-9_-]{1,64}`. */
  line(name: string): Line {
    return new Line(this, this.#connection, this.#feeds, name);
  }

  /** The rate limits of a domain. Sends no request. Throws `bad_argument` if `domain` is not `[A-Za-z0-9_-]{1,64}`. */
  limiter(domain: string, options: LimiterOptions = {}): Limiter {
    return new Limiter(this.#connection, domain, options);
  }
}
