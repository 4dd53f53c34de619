/** Renewals are at least this far apart, however little of the claim is left. */
const RENEW_MIN_MS = 50;

/** The time of a claim, as its newest answer says. Counted from before the request. No I/O. */
export interface Lease {
  /** The line's `checkout_timeout_ms`, as far as it is known. */
  full: number;
  expiresAt: number;
  /** A third of what is left later: two more attempts fit in before the end. Undefined: no renewal puts the end off. */
  renewAt: number | undefined;
}

/** The answer to a claim. */
export function claimed(sent: number, left: number): Lease {
  return { full: left, expiresAt: sent + left, renewAt: sent + Math.max(left / 3, RENEW_MIN_MS) };
}

/** The answer to a renewal. */
export function renewed(lease: Lease, sent: number, left: number): Lease {
  const next = claimed(sent, left);
  // `checkout_max_ms` keeps the end where it is. A shorter `checkout_timeout_ms` brings it nearer.
  const isShortened = lease.expiresAt - next.expiresAt > lease.full / 10;
  const full = isShortened ? left : Math.max(lease.full, left);
  // Near `checkout_max_ms` each renewal brings less: the last ones would crowd.
  return { ...next, full, renewAt: left <= full / 10 ? undefined : next.renewAt };
}
