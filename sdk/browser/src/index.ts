/**
 * A visitor's place in a line, live in the browser, from the endpoints of the gateway: an EventSource, or questions for the
 * status where there can be none. No dependencies, no NATS.
 *
 *     const following = follow("sale", { onVisit: (visit) => show(visit.position, visit.eta_ms) });
 */

/** What the gateway says of this visitor's visit, with the names of the contract (`docs/protocol/users.md`). */
export interface Visit {
  /** What the waiting page shows: `waiting`, `admitted`, `sold_out`, … */
  page?: string;
  state?: "waiting" | "admitted" | "in_checkout" | "gone";
  lane?: string;
  token?: number;
  /** While waiting: 1 + how many wait before it in its lane. */
  position?: number;
  /** `position` is as far as the line counts, and the true position larger. */
  position_capped?: boolean;
  /** While waiting: `position - 1`. */
  ahead?: number;
  /** While waiting: 1 + how many of all lanes would be admitted before it, as things are. */
  turn?: number;
  /** While waiting: the median of the time until it is admitted; null while that is not known. */
  eta_ms?: number | null;
  /** Nine in ten wait no longer. */
  eta_p90_ms?: number | null;
  held_back_by?: { by: string };
  phase?: string;
  /** While it holds a seat: in how long it loses the seat, counted from when this came. */
  expires_in_ms?: number;
  /** Once gone: why. */
  reason?: string;
  /** What `onNotice` was told last. */
  notice?: Notice | undefined;
  [field: string]: unknown;
}

/** A text of the operator. */
export interface Notice {
  text: string;
  /** Its language, if the operator named one. */
  lang?: string;
}

/** How the visit is followed at the moment. */
export interface Link {
  /** What is shown is up to date, as far as anybody knows. */
  live: boolean;
  /** By the clock of this machine: the last sign of life. */
  since: Date;
}

/** The options of `follow`. */
export interface FollowOptions {
  /** Told of each change, and of what is known at first. */
  onVisit: (visit: Visit) => void;
  /** Told when the gateway has fallen silent (after some seconds: shorter losses worry people for nothing), and is back. */
  onLink?: (link: Link) => void;
  /** A text of the operator for everybody who waits; undefined takes it back. */
  onNotice?: (notice: Notice | undefined) => void;
  /** Where the gateway's endpoints are; default `/_nowserving`. */
  base?: string;
  /** One stream for all tabs of this browser (it has six for a host, over HTTP/1.1); default true. */
  shareTabs?: boolean;
}

/** The gateway sends something at least every 15 s: a stream that was silent for longer is dead. */
const SILENT_MS = 40_000;
/** Losses are told after this long. */
const TELL_LOSS_MS = 5_000;
/** After so many failures in a row there are questions only, and a stream is tried again after a while. */
const STREAM_TRIES = 3;
const STREAM_AGAIN_MS = 120_000;
const ASK_TIMEOUT_MS = 15_000;

/** Fields that an event `place` replaces. */
const PLACE = [
  "position",
  "position_capped",
  "ahead",
  "turn",
  "eta_ms",
  "eta_p90_ms",
  "eta_from",
  "held_back_by",
  "call_ahead",
  "admitted_through",
];

const EVENTS = ["place", "admitted", "gone", "phase", "notice", "beat"] as const;
type EventName = (typeof EVENTS)[number] | "status";

type Message =
  | { event: "ask" }
  | { event: "lost"; since: number }
  | { event: EventName; data: Visit; receivedAt: number };

/** Follows this browser's visit to a line, by the cookie that it has, until `close` or the end of the visit. */
export function follow(line: string, options: FollowOptions): Following {
  return new Following(line, options);
}

/** A visit that is followed; see `follow`. */
export class Following {
  /** What is known now; undefined before the first answer. */
  visit: Visit | undefined;
  readonly #options: FollowOptions;
  readonly #urls: { status: string; events: string };
  readonly #name: string;
  readonly #stopped = new AbortController();
  #channel: BroadcastChannel | undefined;
  /** Ends the lock: this tab has the stream. */
  #release: (() => void) | undefined;
  #source: EventSource | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #watchdog: ReturnType<typeof setInterval>;
  #failures = 0;
  #triedAt = -Infinity;
  #heardAt = now();
  /** When the present visit came, by the clock of this machine. */
  #visitAt = 0;
  /** The text that was told last. */
  #notice: string | undefined;
  #lostAt: number | undefined;
  #toldLoss = false;

  /** Use `follow`. */
  constructor(line: string, options: FollowOptions) {
    if (!/^[A-Za-z0-9_-]{1,64}$/.test(line)) throw new TypeError("line: must be [A-Za-z0-9_-]{1,64}");
    const base = new URL(`${options.base ?? "/_nowserving"}/`, location.href);
    this.#options = options;
    this.#urls = {
      status: new URL(`v1/lines/${line}/status`, base).href,
      events: new URL(`v1/lines/${line}/events`, base).href,
    };
    this.#name = `nowserving ${this.#urls.events}`;
    this.#watchdog = setInterval(() => this.#tick(), 1_000);
    const { signal } = this.#stopped;
    const wake = () => {
      if (document.visibilityState === "visible") this.check();
    };
    document.addEventListener("visibilitychange", wake, { signal });
    addEventListener("online", wake, { signal });
    // A page that the browser keeps for "back" must not hold the stream of the other tabs.
    addEventListener("pagehide", () => this.#yield(), { signal });
    addEventListener("pageshow", ({ persisted }) => persisted && this.#start(), { signal });
    this.#start();
  }

  /** Asks now, if what is known may be old. Called by itself when the tab is looked at again. */
  check(): void {
    if (this.#isOver) return;
    if (!this.#release) this.#channel?.postMessage({ event: "ask" } satisfies Message);
    else if (!this.#source || this.#lostAt !== undefined || now() - this.#heardAt > SILENT_MS / 2) {
      this.#failures = 0;
      void this.#ask();
    }
  }

  /** Ends it. The place in line is kept for as long as the line's settings say. */
  close(): void {
    clearInterval(this.#watchdog);
    this.#stopped.abort();
    this.#yield();
  }

  get #isOver(): boolean {
    return this.#stopped.signal.aborted;
  }

  // ---- one stream for all tabs: the tab that holds the lock has it, and passes on what comes

  #start(): void {
    if (this.#isOver) return;
    if (this.#options.shareTabs === false || !("locks" in navigator) || !("BroadcastChannel" in globalThis)) {
      this.#release = () => {};
      return this.#lead();
    }
    const channel = new BroadcastChannel(this.#name);
    channel.addEventListener("message", ({ data }) => this.#onMessage(data as Message));
    this.#channel = channel;
    const hold = () =>
      new Promise<void>((release) => {
        if (this.#channel !== channel) return release();
        this.#release = release;
        this.#lead();
      });
    void navigator.locks.request(this.#name, { signal: this.#stopped.signal }, hold).catch(() => undefined);
    channel.postMessage({ event: "ask" } satisfies Message);
  }

  #yield(): void {
    this.#stop();
    this.#channel?.close();
    this.#channel = undefined;
    this.#release?.();
    this.#release = undefined;
  }

  #onMessage(message: Message): void {
    if (message.event === "ask") {
      if (this.#release && this.visit) this.#post("status", this.visit, this.#visitAt);
    } else if (message.event === "lost") this.#lose(message.since);
    else {
      // Times that count down have gone on since.
      const data = { ...message.data };
      const age = Math.max(0, Date.now() - message.receivedAt);
      if (typeof data.expires_in_ms === "number") data.expires_in_ms = Math.max(0, data.expires_in_ms - age);
      this.#heard();
      this.#take(message.event, data, message.receivedAt);
    }
  }

  #post(event: EventName, data: Visit, receivedAt: number): void {
    this.#channel?.postMessage({ event, data, receivedAt } satisfies Message);
  }

  // ---- the stream, and questions where it fails

  #lead(): void {
    this.#failures = 0;
    this.#open();
  }

  #stop(): void {
    this.#source?.close();
    this.#source = undefined;
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #open(): void {
    this.#stop();
    if (!("EventSource" in globalThis)) return void this.#ask();
    this.#triedAt = now();
    const source = new EventSource(this.#urls.events);
    this.#source = source;
    // From here on the stream has its time to say something.
    this.#heardAt = now();
    for (const event of EVENTS) {
      source.addEventListener(event, ({ data }: MessageEvent<string>) => {
        if (source !== this.#source) return;
        this.#failures = 0;
        this.#receive(event, parsed(data));
      });
    }
    source.addEventListener("error", () => {
      if (source !== this.#source) return;
      this.#lose();
      // The browser connects again by itself, after the pause that the gateway gave. It does not after an answer that is no
      // stream: a finished visit, a gateway at its limit, a proxy's error.
      if (source.readyState === EventSource.CLOSED) this.#failed();
    });
  }

  #failed(): void {
    this.#stop();
    this.#failures += 1;
    // So that a crowd that has lost its gateway does not come back at once.
    this.#timer = setTimeout(() => void this.#ask(), between(2_000, 10_000) * Math.min(this.#failures, 3));
  }

  async #ask(): Promise<void> {
    this.#stop();
    const data = await this.#status();
    if (this.#isOver || !this.#release || this.#source || this.#timer !== undefined) return;
    if (!data) {
      this.#lose();
      return this.#failed();
    }
    this.#receive("status", data);
    if (this.#isOver) return;
    if (this.#failures < STREAM_TRIES || now() - this.#triedAt > STREAM_AGAIN_MS) return this.#open();
    const pause = Number(data["poll_after_ms"] ?? data["retry_after_ms"] ?? 15_000);
    this.#timer = setTimeout(() => void this.#ask(), Math.max(1_000, pause) * between(1, 1.2));
  }

  async #status(): Promise<Visit | undefined> {
    try {
      const signal = AbortSignal.timeout(ASK_TIMEOUT_MS);
      const headers = { accept: "application/json" };
      const answer = await fetch(this.#urls.status, { headers, cache: "no-store", signal });
      const data: unknown = await answer.json();
      const isVisit = typeof data === "object" && data !== null && ("state" in data || "page" in data);
      return isVisit ? (data as Visit) : undefined;
    } catch {
      return undefined;
    }
  }

  // ---- what comes

  #receive(event: EventName, data: Visit | undefined): void {
    if (!data) return this.#lose();
    this.#heard();
    this.#post(event, data, Date.now());
    this.#take(event, data, Date.now());
  }

  #take(event: EventName, data: Visit, receivedAt: number): void {
    if (event === "beat") return;
    if (event === "notice") {
      const notice = noticeIn(data);
      // A tab that comes later is given the visit alone.
      if (this.visit) this.visit = { ...this.visit, notice };
      return this.#announce(notice);
    }
    if (event === "place") {
      const rest = Object.entries(this.visit ?? {}).filter(([name]) => !PLACE.includes(name));
      this.visit = { ...Object.fromEntries(rest), ...data };
    } else {
      this.visit = data;
      this.#visitAt = receivedAt;
    }
    // The visit is over: nothing comes after this.
    if (this.visit.state === "gone") this.close();
    // Whoever has no stream learns of it in this way alone.
    if (event !== "place") this.#announce(noticeIn(data.notice));
    this.#options.onVisit({ ...this.visit });
  }

  #announce(notice: Notice | undefined): void {
    // Each stream, and each status, tells it again.
    if (notice?.text === this.#notice) return;
    this.#notice = notice?.text;
    this.#options.onNotice?.(notice);
  }

  #heard(): void {
    this.#heardAt = now();
    this.#lostAt = undefined;
    if (!this.#toldLoss) return;
    this.#toldLoss = false;
    this.#options.onLink?.({ live: true, since: new Date() });
  }

  #lose(since?: number): void {
    this.#lostAt ??= now();
    if (since === undefined) this.#channel?.postMessage({ event: "lost", since: this.#since } satisfies Message);
  }

  /** The last sign of life, by the clock on the wall. */
  get #since(): number {
    return Date.now() - (now() - this.#heardAt);
  }

  #tick(): void {
    if (this.#source && now() - this.#heardAt > SILENT_MS) {
      // The browser may not know that the stream is dead.
      this.#lose();
      this.#failed();
    }
    if (this.#lostAt !== undefined && !this.#toldLoss && now() - this.#lostAt >= TELL_LOSS_MS) {
      this.#toldLoss = true;
      this.#options.onLink?.({ live: false, since: new Date(this.#since) });
    }
  }
}

function now(): number {
  return performance.now();
}

function between(low: number, high: number): number {
  return low + Math.random() * (high - low);
}

/** None if it has no text. */
function noticeIn(data: unknown): Notice | undefined {
  const { text, lang } = (data ?? {}) as { text?: unknown; lang?: unknown };
  if (typeof text !== "string" || !text) return undefined;
  return typeof lang === "string" ? { text, lang } : { text };
}

function parsed(text: string): Visit | undefined {
  try {
    const data: unknown = JSON.parse(text);
    return typeof data === "object" && data !== null ? (data as Visit) : undefined;
  } catch {
    return undefined;
  }
}
