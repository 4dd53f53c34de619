//! The draw at the opening of a line: who waits then is numbered anew, in an order drawn by lot (`lot`).
//!
//! 1. While the line is in phase `pre_open` its leader brings in a seed ([`crate::Op::SealDraw`]); the line shows its hash.
//! 2. When the line opens, all who wait take part, and each lane issues a block of as many numbers at once. Who enters
//!    from then on gets a number above it.
//! 3. Background work goes through the lanes: it computes the lots of all who take part, then renumbers them from the
//!    smallest lot on, those who are gone too, so that a new number depends on the seed and on who took part, and on nothing
//!    that happens meanwhile. Nobody is admitted before that is done.

use crate::draw_pages::{DrawBegun, DrawBlock, DrawPage, DrawnLane, Step};
use crate::line::{Lane, Line};
use crate::lot::{self, Hash, Secret};
use crate::transitions::ApplyCtx;
use crate::{
    Journaled, JournaledToken, LineChange, MovedBy, NUMBER_MAX, Opening, Phase, Timestamp, Token,
    TokenChange,
};

/// So many lots are computed for a unit of the entry's work limit.
const LOTS_PER_UNIT: u32 = 8;

/// How far a draw has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrawState {
    /// The line has not opened yet, or has no seed.
    Awaited,
    Running,
    Done,
}

impl DrawState {
    /// As the protocol spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            DrawState::Awaited => "awaited",
            DrawState::Running => "running",
            DrawState::Done => "done",
        }
    }
}

/// A draw as everybody may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawView {
    pub state: DrawState,
    /// `None` until a leader has brought the seed in.
    pub commitment: Option<Hash>,
    /// Once it has begun.
    pub seed: Option<Hash>,
    /// Once it has begun, if there is one.
    pub beacon: Option<String>,
    /// How many took part, once it has begun.
    pub took_part: Option<u64>,
    /// How many of them have a new number, or were gone when their turn came.
    pub drawn: Option<u64>,
    /// Of all who took part, once it is done.
    pub digest: Option<Hash>,
}

impl Line {
    /// The draw at its opening; `None` if it opens, or has opened, in order.
    pub fn draw(&self) -> Option<DrawView> {
        let draw = self.draw.as_ref()?;
        let begun = draw.head.begun.as_ref();
        if begun.is_none() && !self.awaits_draw() {
            return None;
        }
        let drawn = || draw.lanes.iter().map(|lane| u64::from(lane.drawn)).sum();
        let beacon = begun.map(|begun| begun.beacon.clone());
        Some(DrawView {
            state: match begun {
                None => DrawState::Awaited,
                Some(_) if draw.is_done() => DrawState::Done,
                Some(_) => DrawState::Running,
            },
            commitment: draw.head.seed.map(|seed| lot::commitment(&seed.0)),
            seed: draw.head.seed.filter(|_| begun.is_some()).map(|it| it.0),
            beacon: beacon.filter(|beacon| !beacon.is_empty()),
            took_part: begun.map(|_| draw.took_part()),
            drawn: begun.map(|_| drawn()),
            digest: self.draw_digest().filter(|_| draw.is_done()),
        })
    }

    /// Whether a draw is awaited or goes on: until it is done nobody is admitted, and places mean nothing.
    pub fn is_undrawn(&self) -> bool {
        self.draw
            .as_ref()
            .is_some_and(|draw| match draw.head.begun {
                None => self.awaits_draw(),
                Some(_) => !draw.is_done(),
            })
    }

    /// Whether it opens by a draw once its phase admits.
    pub(crate) fn awaits_draw(&self) -> bool {
        let draw = self.draw.as_ref().filter(|draw| draw.head.begun.is_none());
        draw.is_some_and(|draw| draw.head.awaited) && self.settings.opening == Opening::Draw
    }

    /// Whether the leader is to bring a seed in, by [`crate::Op::SealDraw`].
    pub fn needs_seed(&self) -> bool {
        let draw = self.draw.as_ref().filter(|_| self.awaits_draw());
        let unsealed = draw.is_some_and(|draw| draw.head.seed.is_none());
        unsealed && self.phase() != Phase::Closed
    }

    /// The number that the draw gave to one that took part, before any move.
    pub(crate) fn drawn_as(&self, (lane, token): (u8, Token)) -> Option<Token> {
        let draw = self.draw.as_ref()?;
        let block = draw.head.begun.as_ref()?.lanes.get(usize::from(lane))?;
        let new = draw.lanes.get(usize::from(lane))?.new_of(token)?;
        (new > 0).then(|| block.after + u64::from(new))
    }

    /// Whether this number is one of those that the draw gives.
    pub(crate) fn is_drawn(&self, at: (u8, Token)) -> bool {
        self.place_drawn(at).is_some()
    }

    /// Whether it is one that the draw is still to give.
    pub(crate) fn is_to_be_drawn(&self, at: (u8, Token)) -> bool {
        let drawn = self.drawn_lane(at.0.into()).map_or(0, |lane| lane.drawn);
        self.place_drawn(at)
            .is_some_and(|place| place > drawn.into())
    }

    /// Whether it took part, and is not drawn.
    pub(crate) fn waits_for_draw(&self, (lane, token): (u8, Token)) -> bool {
        let lane = self.drawn_lane(lane.into());
        lane.and_then(|lane| lane.new_of(token)) == Some(0)
    }

    /// The place, from 1 on, of a number in those that the draw gives in its lane.
    fn place_drawn(&self, (lane, token): (u8, Token)) -> Option<u64> {
        let block = self.draw_begun()?.lanes.get(usize::from(lane))?;
        let place = token.checked_sub(block.after)?;
        (1..=u64::from(block.count))
            .contains(&place)
            .then_some(place)
    }

    /// Whether a number is one of those that the draw gives, or a later one of its lane.
    pub(crate) fn is_issued_since_draw(&self, (lane, token): (u8, Token)) -> bool {
        let begun = self.draw_begun();
        let block = begun.and_then(|begun| begun.lanes.get(usize::from(lane)));
        block.is_some_and(|block| token > block.after)
    }

    pub(crate) fn draw_begun(&self) -> Option<&DrawBegun> {
        self.draw.as_ref()?.head.begun.as_ref()
    }

    /// When a token counts as having entered, between lanes.
    pub(crate) fn counts_as_entered(&self, entered: Timestamp) -> Timestamp {
        let begun = self.draw.as_ref().and_then(|draw| draw.head.begun.as_ref());
        let least_ms = begun.map_or(0, |begun| begun.opened_at_ms);
        Timestamp {
            service_ms: entered.service_ms.max(least_ms),
            ..entered
        }
    }

    /// For dumps: the next page of a lane.
    pub(crate) fn restore_draw(&mut self, lane: u8, page: DrawPage) -> Result<(), &'static str> {
        const OTHERS: &str = "a draw of others";
        let name = &self.lanes.get(usize::from(lane)).ok_or(OTHERS)?.name;
        let draw = self.draw.as_mut().ok_or(OTHERS)?;
        draw.add((lane, name), page, self.incarnation)
    }

    /// For dumps: how many pages a lane has.
    pub(crate) fn drawn_pages_len(&self, lane: u64) -> u64 {
        self.drawn_lane(lane)
            .map_or(0, |lane| lane.pages.len() as u64)
    }

    /// For dumps: those at these places.
    pub(crate) fn drawn_pages(&self, lane: u64, places: std::ops::Range<u64>) -> Vec<DrawPage> {
        let pages = self.drawn_lane(lane).map_or(&[][..], |lane| &lane.pages);
        let place = |place| {
            usize::try_from(place)
                .unwrap_or(usize::MAX)
                .min(pages.len())
        };
        pages[place(places.start)..place(places.end)].to_vec()
    }

    fn drawn_lane(&self, lane: u64) -> Option<&DrawnLane> {
        let lane = usize::try_from(lane).ok()?;
        self.draw.as_ref()?.lanes.get(lane)
    }

    /// The line was put back from a backup: the seed of a draw that has not begun may have been shown since.
    pub(crate) fn unseal_draw(&mut self) {
        if let Some(draw) = self.draw.as_mut().filter(|draw| draw.head.begun.is_none()) {
            draw.head.seed = None;
        }
    }

    /// A seed that comes twice, or too late, does nothing.
    pub(crate) fn seal_draw(&mut self, seed: Secret, ctx: &mut ApplyCtx<'_>) {
        if !self.needs_seed() {
            return;
        }
        if let Some(draw) = &mut self.draw {
            draw.head.seed = Some(seed);
        }
        let commitment = lot::commitment(&seed.0);
        self.draw_event(
            LineChange::DrawSealed { commitment },
            Journaled::DrawSealed,
            ctx,
        );
        self.run_background(ctx);
    }

    fn draw_event(&mut self, what: LineChange, journaled: Journaled, ctx: &mut ApplyCtx<'_>) {
        self.line_event(what, ctx.wall_ms, ctx.events.as_deref_mut());
        self.journal_entry(journaled, ctx.wall_ms);
    }

    /// Prepares the draw, begins it, or goes on with it as far as the entry's work limit goes.
    pub(crate) fn run_draw(&mut self, ctx: &mut ApplyCtx<'_>) {
        if self.phase() == Phase::PreOpen && self.settings.opening == Opening::Draw {
            self.draw.get_or_insert_default().head.awaited = true;
        }
        if self.phase().admits() {
            self.begin_draw(ctx);
        }
        while *ctx.work_left > 0 && self.draws() {
            let step = self.draw_step();
            let Some(step) = step else { break };
            let work = match step {
                Step::Lots { count } => count.div_ceil(LOTS_PER_UNIT),
                Step::Drew { lane, from, to } => {
                    self.renumber(lane, from, to, ctx);
                    1
                }
            };
            *ctx.work_left = ctx.work_left.saturating_sub(work);
            self.end_draw(ctx);
        }
    }

    fn draw_step(&mut self) -> Option<Step> {
        let draw = self.draw.as_mut()?;
        let name = &self.lanes.get(draw.lane())?.name;
        draw.step(self.incarnation, name)
    }

    /// Of all who took part, once all lots are computed.
    fn draw_digest(&self) -> Option<Hash> {
        let blocks = self.lanes.iter().zip(&self.draw_begun()?.lanes);
        let took_part = blocks.filter(|(_, block)| block.count > 0);
        Some(lot::digest_of(
            took_part.map(|(lane, block)| (&lane.name, block.digest)),
        ))
    }

    /// Whether a draw goes on.
    fn draws(&self) -> bool {
        let begun = self.draw.as_ref().filter(|draw| draw.head.begun.is_some());
        begun.is_some_and(|draw| !draw.is_done())
    }

    /// Whether a draw can begin or go on now.
    pub(crate) fn has_to_draw(&self) -> bool {
        let has_seed = self
            .draw
            .as_ref()
            .is_some_and(|draw| draw.head.seed.is_some());
        self.draws() || has_seed && self.is_undrawn() && self.phase().admits()
    }

    /// The line admits: it opens with the draw for which there is a seed, or in order.
    fn begin_draw(&mut self, ctx: &mut ApplyCtx<'_>) {
        let Some(draw) = self.draw.as_mut().filter(|draw| draw.head.begun.is_none()) else {
            return;
        };
        let has_numbers = |lane: &Lane| lane.issued() + lane.waiting.len() <= NUMBER_MAX;
        if self.settings.opening == Opening::Order || !self.lanes.iter().all(has_numbers) {
            // The seed that it has committed itself to stays: it must not choose another one.
            draw.head.awaited = false;
        }
        let Some(Secret(seed)) = draw.head.seed.filter(|_| draw.head.awaited) else {
            return;
        };
        let mut begun = DrawBegun {
            beacon: self.settings.draw_beacon.clone().unwrap_or_default(),
            opened_at_ms: ctx.now_ms,
            lanes: Vec::new(),
        };
        for lane in &mut self.lanes {
            let mut drawn = DrawnLane::default();
            for (no, took_part) in lane.waiting.bits() {
                let drawn_yet = Vec::new();
                drawn.push(DrawPage {
                    no,
                    took_part,
                    drawn: drawn_yet,
                });
            }
            begun.lanes.push(DrawBlock {
                after: lane.issued(),
                count: drawn.count(),
                digest: Hash::default(),
            });
            lane.next_token += u64::from(drawn.count());
            draw.lanes.push(drawn);
        }
        draw.pass_drawn();
        let (beacon, took_part) = (begun.beacon.clone(), begun.took_part());
        draw.head.begun = Some(begun);
        // As every number: see `Line::skip_numbers`.
        self.version = self.version.saturating_add(took_part);
        let what = LineChange::DrawBegun {
            seed,
            beacon,
            took_part,
        };
        self.draw_event(what, Journaled::DrawBegun { took_part }, ctx);
        self.end_draw(ctx);
    }

    /// Says so if it is done, once.
    fn end_draw(&mut self, ctx: &mut ApplyCtx<'_>) {
        if self.draws() {
            return;
        }
        if let Some(digest) = self.draw_digest() {
            self.draw_event(LineChange::Drawn { digest }, Journaled::Drawn, ctx);
        }
    }

    /// Gives one that took part its new number, if it still waits.
    fn renumber(&mut self, lane_id: u8, from: Token, to: Token, ctx: &mut ApplyCtx<'_>) {
        if nowserving_bite::is(nowserving_bite::Break::S7Drawn) && to.is_multiple_of(4) {
            return;
        }
        let Some(lane) = self.lanes.get_mut(usize::from(lane_id)) else {
            return;
        };
        let Some(mut live) = lane.waiting.take(from) else {
            return;
        };
        live.eta_given = None;
        let entered = live.entered;
        let key = live.key.clone();
        self.remove_key(key.as_deref(), (lane_id, from));
        for former in &live.moved_from {
            self.moved.get_mut().insert(*former, (lane_id, to));
        }
        let counts_as = self.counts_as_entered(entered.at);
        let lane = &mut self.lanes[usize::from(lane_id)];
        lane.waiting.insert(to, counts_as, live.view());
        let to_lane = lane.name.clone();
        self.add_key(key.as_deref(), (lane_id, to));
        let what = TokenChange::Moved {
            to_lane,
            to: self.token_ref(lane_id, to),
            by: MovedBy::Draw,
        };
        self.token_event(lane_id, from, what, ctx);
        let what = JournaledToken::Moved {
            to_lane: lane_id,
            to,
            by: MovedBy::Draw,
        };
        self.journal_token((lane_id, from), entered, what, ctx.wall_ms);
    }
}
