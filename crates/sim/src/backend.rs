//! What a line's backend does beside serving those who are admitted: it tells its capacity, and lists who is there.

use nowserving_line::{LineName, Op, Settings};
use nowserving_protocol::admin::{ListTokens, TokenOrder};
use nowserving_protocol::kick::LiveState;

use crate::random::Random;

/// It tells its capacity for a while, or takes back what it has told.
pub fn capacity(line: LineName, settings: &Settings, random: &mut Random) -> Op {
    let seats = random.between(1, u64::from(settings.seats) + 2) as u32;
    let for_ms = random.between(1_000, 4_000);
    let told = (random.below(6) > 0).then_some((seats, for_ms));
    Op::CapacityTold { line, told }
}

/// A page, which may be all.
pub fn page(random: &mut Random) -> ListTokens {
    ListTokens {
        state: (random.below(4) == 0).then_some(LiveState::Waiting),
        order: match random.below(2) {
            0 => TokenOrder::Number,
            _ => TokenOrder::Service,
        },
        limit: Some(random.between(1, 60)),
        ..ListTokens::default()
    }
}
