"""When a claim is renewed, and when it ends. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Renewals are at least this far apart, however little of the claim is left.
_RENEW_MIN = 0.05


@dataclass(frozen=True, slots=True)
class Lease:
    """The time of a claim, as its newest answer says. Counted from before the request."""

    #: The line's ``checkout_timeout_ms``, as far as it is known.
    full: float
    expires_at: float
    #: A third of what is left later: two more attempts fit in before the end. ``None``: no renewal puts the end off.
    renew_at: float | None

    @staticmethod
    def new(sent: float, left: float) -> Lease:
        """The answer to a claim."""
        return Lease(full=left, expires_at=sent + left, renew_at=sent + max(left / 3, _RENEW_MIN))

    def renewed(self, sent: float, left: float) -> Lease:
        """The answer to a renewal."""
        new = Lease.new(sent, left)
        # `checkout_max_ms` keeps the end where it is. A shorter `checkout_timeout_ms` brings it nearer.
        is_shortened = self.expires_at - new.expires_at > self.full / 10
        full = left if is_shortened else max(self.full, left)
        # Near `checkout_max_ms` each renewal brings less: the last ones would crowd.
        return replace(new, full=full, renew_at=None if left <= full / 10 else new.renew_at)
