import { now } from "./connection.js";
import { NowservingError } from "./errors.js";
import type { Watcher } from "./feed.js";
import type { Status } from "./types.js";
import { View } from "./view.js";

/** After a transient error the next status is asked after this long, up to twice of it. */
const RETRY_DELAY_MS = 500;

/** What a tracker asks of a line. */
export interface Tracked {
  watch: () => Promise<Watcher>;
  status: (ticket: string, holes: boolean) => Promise<Status>;
}

/** The options of `line.track`. */
export interface TrackOptions {
  /** Told of errors after which the place goes on: a leader that died, a connection that is made again. */
  onError?: (error: NowservingError) => void;
  /** Ends the tracker, as if its token were gone. */
  signal?: AbortSignal;
}

/**
 * A token's status whenever it changes; see `line.track`. It polls only while it is iterated over: leave the loop, and the
 * token is recycled in the end.
 */
export class Tracker implements AsyncIterableIterator<Status> {
  /** The ticket of the token as it is now. */
  ticket: string;
  readonly #line: Tracked;
  readonly #options: TrackOptions;
  // Subscribed to on the first step, not before.
  #watcher: Watcher | undefined;
  readonly #view = new View(now());
  #over = false;

  constructor(line: Tracked, ticket: string, options: TrackOptions) {
    this.#line = line;
    this.ticket = ticket;
    this.#options = options;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** The next status. */
  async next(): Promise<IteratorResult<Status, undefined>> {
    for (;;) {
      try {
        const value = await this.step();
        return value ? { done: false, value } : { done: true, value: undefined };
      } catch (error) {
        if (!(error instanceof NowservingError && error.isTransient)) throw error;
        this.#options.onError?.(error);
      }
    }
  }

  /** Ends it: what leaving a `for await` does. */
  async return(): Promise<IteratorResult<Status, undefined>> {
    this.#end();
    return { done: true, value: undefined };
  }

  /**
   * The next status, undefined at the end. Throws transient errors, too; it can be called again after one.
   */
  async step(): Promise<Status | undefined> {
    try {
      const status = await this.#next();
      if (!status || status.state === "gone") this.#end();
      return status;
    } catch (error) {
      if (!(error instanceof NowservingError && error.isTransient)) this.#end();
      throw error;
    }
  }

  #end(): void {
    this.#over = true;
    this.#watcher?.end();
    this.#watcher = undefined;
  }

  async #next(): Promise<Status | undefined> {
    while (!this.#over && !this.#options.signal?.aborted) {
      const watcher = (this.#watcher ??= await this.#line.watch());
      const left = this.#view.pollAt - now();
      let changed: Status | undefined;
      if (left <= 0) changed = await this.#poll(watcher);
      else {
        const event = await watcher.next(left, this.#options.signal);
        if (event === "resync") this.#view.resync(now());
        else if (event) changed = this.#view.board(event, now());
      }
      if (changed) return { ...changed };
    }
    return undefined;
  }

  async #poll(watcher: Watcher): Promise<Status | undefined> {
    // Boards that arrive meanwhile wait in the feed.
    try {
      const status = await watcher.unlessEnded(this.#line.status(this.ticket, this.#view.wantsHoles));
      // The old one works only as long as the line remembers the move.
      this.ticket = status.ticket ?? this.ticket;
      return this.#view.status(status, now());
    } catch (error) {
      this.#view.pollAt = now() + RETRY_DELAY_MS * (1 + Math.random());
      throw error;
    }
  }
}
