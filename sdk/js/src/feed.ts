/** The boards of one line, subscribed to once however many watch it in this process. */

import type { Msg } from "@nats-io/nats-core";

import type { Connection, Unsubscribe } from "./connection.js";
import { forbidden } from "./connection.js";
import { closed, NowservingError } from "./errors.js";
import type { Board } from "./types.js";
import { readBoard, readLineEvent } from "./types.js";

/** How many boards a watcher may be behind: six seconds, at twenty boards a second. */
const BEHIND_MAX = 128;

/** `resync`: boards may have been missed, or the line has changed in a way that no board shows. */
export type FeedEvent = Board | "resync";

/** One watcher's end of a feed. */
export class Watcher {
  readonly #feed: Feed;
  #events: FeedEvent[] = [];
  #wake: (() => void) | undefined;

  constructor(feed: Feed) {
    this.#feed = feed;
  }

  /** The next event; undefined if none comes within this time, or when the signal aborts. */
  async next(withinMs: number, signal: AbortSignal | undefined): Promise<FeedEvent | undefined> {
    if (this.#events.length === 0 && !this.#feed.error) await this.#woken(withinMs, signal);
    const event = this.#events.shift();
    if (event === undefined && this.#feed.error) throw this.#feed.error;
    return event;
  }

  /** The result of this, unless the feed ends before: a server reports a missing right when it likes. */
  async unlessEnded<T>(work: Promise<T>): Promise<T> {
    let end: (() => void) | undefined;
    const ended = new Promise<never>((_, reject) => {
      end = this.#feed.onEnd(reject);
    });
    try {
      return await Promise.race([work, ended]);
    } finally {
      end?.();
    }
  }

  push(event: FeedEvent): void {
    if (this.#events.length >= BEHIND_MAX) this.#events = ["resync"];
    else this.#events.push(event);
    this.#wake?.();
  }

  wake(): void {
    this.#wake?.();
  }

  /** Nobody watches here any more. */
  end(): void {
    this.#feed.unwatch(this);
  }

  #woken(withinMs: number, signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve) => {
      if (signal?.aborted) return resolve();
      const end = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", end);
        this.#wake = undefined;
        resolve();
      };
      const timer = setTimeout(end, Math.min(withinMs, 0x7fff_ffff));
      signal?.addEventListener("abort", end);
      this.#wake = end;
    });
  }
}

/** One line's subscriptions. */
export class Feed {
  readonly #connection: Connection;
  readonly #watchers = new Set<Watcher>();
  readonly #onEnd = new Set<(error: NowservingError) => void>();
  readonly #subscriptions: Unsubscribe[] = [];
  readonly #subscribed: Promise<void>;
  readonly #unlisten: () => void;
  /** Why it has ended; undefined while it goes on. */
  error: NowservingError | undefined;

  constructor(connection: Connection, line: string) {
    this.#connection = connection;
    const subjects = [`${connection.prefix}.event.${line}.board`, `${connection.prefix}.event.${line}.line`];
    this.#unlisten = connection.listen({
      // The library subscribes again by itself. Boards that were published meanwhile are lost.
      reconnect: () => this.#push("resync"),
      refused: (subject) => {
        if (subjects.includes(subject)) this.#end(forbidden(`this NATS user may not subscribe to ${subject}`));
      },
      closed: () => this.#end(closed()),
    });
    this.#subscribed = this.#subscribe(subjects[0]!, subjects[1]!);
  }

  /**
   * A watcher. When this returns the server has the subscription: the reply to a request that is sent afterwards is not
   * older than any board that was missed.
   */
  async watch(withinMs: number): Promise<Watcher> {
    const watcher = new Watcher(this);
    this.#watchers.add(watcher);
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<never>((_, reject) => {
      const error = new NowservingError("unavailable", "unavailable", "no connection to NATS to watch over");
      timer = setTimeout(() => reject(error), withinMs);
    });
    try {
      await Promise.race([this.#subscribed, late]);
      if (this.error) throw this.error;
      return watcher;
    } catch (error) {
      this.unwatch(watcher);
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  unwatch(watcher: Watcher): void {
    this.#watchers.delete(watcher);
    if (this.#watchers.size === 0) this.#end(new NowservingError("connection", "unavailable", "nobody watches"));
  }

  onEnd(tell: (error: NowservingError) => void): () => void {
    if (this.error) tell(this.error);
    this.#onEnd.add(tell);
    return () => this.#onEnd.delete(tell);
  }

  async #subscribe(boards: string, changes: string): Promise<void> {
    const { nats } = this.#connection;
    try {
      const onBoard = (error: Error | null, message: Msg) => this.#push(error ? "resync" : board(message));
      const onChange = (error: Error | null, message: Msg) => {
        if (error || isDeleted(message)) this.#push("resync");
      };
      this.#subscriptions.push(nats.subscribe(boards, { callback: onBoard }));
      this.#subscriptions.push(nats.subscribe(changes, { callback: onChange }));
      await nats.flush();
    } catch {
      this.#end(closed());
    }
  }

  #end(error: NowservingError): void {
    if (this.error) return;
    this.error = error;
    this.#unlisten();
    if (!this.#connection.nats.isClosed()) for (const subscription of this.#subscriptions) subscription.unsubscribe();
    for (const tell of [...this.#onEnd]) tell(error);
    for (const watcher of [...this.#watchers]) watcher.wake();
  }

  #push(event: FeedEvent): void {
    for (const watcher of [...this.#watchers]) watcher.push(event);
  }
}

/** The feeds of one client. */
export class Feeds {
  readonly #connection: Connection;
  readonly #open = new Map<string, Feed>();

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /** A watcher of this line. */
  watch(line: string, withinMs: number): Promise<Watcher> {
    let feed = this.#open.get(line);
    if (!feed || feed.error) {
      for (const [name, other] of this.#open) if (other.error) this.#open.delete(name);
      feed = new Feed(this.#connection, line);
      this.#open.set(line, feed);
    }
    return feed.watch(withinMs);
  }
}

function board(message: Msg): FeedEvent {
  try {
    return readBoard(message.json());
  } catch {
    return "resync";
  }
}

/** A deleted line publishes no more boards: only a request shows the deletion. */
function isDeleted(message: Msg): boolean {
  try {
    return readLineEvent(message.json()).event === "deleted";
  } catch {
    return true;
  }
}
