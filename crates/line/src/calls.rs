//! Calls: an operator admits the next tokens ([`crate::Op::CallNext`]) or one out of order ([`crate::Op::Take`]), and the
//! line keeps the answers of the newest calls, so that a repeated one admits nobody else.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use nowserving_codec::Codec;

use crate::line::Line;
use crate::seldom::Seldom;
use crate::transitions::ApplyCtx;
use crate::{
    Admission, AdmittedBy, BadField, CALL_MAX, CannotAdmit, KEY_BYTES_MAX, LaneName, Limits, Live,
    Refused, Reply, TakeBy, Token, TokenRef,
};

/// The longest id of a call, in bytes.
pub const CALL_ID_BYTES_MAX: usize = 64;

/// A token that a call admitted.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct CalledToken {
    pub lane: u8,
    pub token: Token,
    pub key: Option<Arc<[u8]>>,
}

/// The answers of calls as a flat list, for dumps: each call is followed by the tokens that it admitted.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub enum CallItem {
    Call(Box<str>),
    Admitted(CalledToken),
}

/// The answers of the newest calls.
#[derive(Debug)]
pub(crate) struct Calls {
    /// [`Limits::calls_kept`], [`Limits::called_kept`]
    most: [usize; 2],
    kept: Seldom<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Oldest first.
    order: VecDeque<Arc<str>>,
    by_id: BTreeMap<Arc<str>, Vec<CalledToken>>,
    /// The tokens of all of them.
    tokens: usize,
}

impl Calls {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            most: [limits.calls_kept, limits.called_kept],
            kept: Seldom::default(),
        }
    }

    fn get(&self, id: &str) -> Option<&[CalledToken]> {
        self.kept.get()?.by_id.get(id).map(Vec::as_slice)
    }

    /// Forgets the oldest ones beyond the limits, but not this one.
    fn remember(&mut self, id: &str, admitted: Vec<CalledToken>) {
        if nowserving_bite::is(nowserving_bite::Break::S13Calls) {
            return;
        }
        let id: Arc<str> = id.into();
        let [calls_kept, called_kept] = self.most;
        let kept = self.kept.get_mut();
        kept.tokens += admitted.len();
        kept.by_id.insert(id.clone(), admitted);
        kept.order.push_back(id);
        while (kept.order.len() > calls_kept || kept.tokens > called_kept)
            && kept.order.len() > 1
            && let Some(oldest) = kept.order.pop_front()
        {
            let forgotten = kept.by_id.remove(&oldest);
            kept.tokens -= forgotten.map_or(0, |tokens| tokens.len());
        }
    }

    /// How many [`CallItem`]s there are.
    pub(crate) fn len(&self) -> usize {
        let kept = self.kept.get();
        kept.map_or(0, |kept| kept.order.len() + kept.tokens)
    }

    pub(crate) fn items(&self) -> impl Iterator<Item = CallItem> + '_ {
        self.items_from(0)
    }

    /// Without so many of the first ones. O(calls) for those.
    pub(crate) fn items_from(&self, first: usize) -> impl Iterator<Item = CallItem> + '_ {
        let mut left_out = first;
        let order = self.kept.get().into_iter().flat_map(|kept| &kept.order);
        order.flat_map(move |id| {
            let admitted = self.get(id).unwrap_or_default();
            let of_this = left_out.min(1 + admitted.len());
            left_out -= of_this;
            let call = (of_this == 0).then(|| CallItem::Call((**id).into()));
            let rest = admitted.iter().skip(of_this.saturating_sub(1));
            call.into_iter()
                .chain(rest.cloned().map(CallItem::Admitted))
        })
    }

    /// The next item of a dump; false if no line can have it.
    pub(crate) fn add(&mut self, item: CallItem) -> bool {
        let [calls_kept, called_kept] = self.most;
        let kept = self.kept.get_mut();
        match item {
            CallItem::Call(id) => {
                let id: Arc<str> = id.into();
                let is_new = kept.by_id.insert(id.clone(), Vec::new()).is_none();
                let is_id = check_id(&id).is_ok();
                kept.order.push_back(id);
                is_new && is_id && kept.order.len() <= calls_kept
            }
            CallItem::Admitted(token) => {
                let last = kept.order.back().and_then(|id| kept.by_id.get_mut(id));
                kept.tokens += 1;
                let Some(last) = last else { return false };
                last.push(token);
                // One call alone may be above the limit.
                last.len() <= CALL_MAX as usize
                    && (kept.tokens <= called_kept || kept.order.len() == 1)
            }
        }
    }
}

fn check_id(id: &str) -> Result<(), BadField> {
    let fits = (1..=CALL_ID_BYTES_MAX).contains(&id.len());
    match fits && id.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(()),
        false => Err(BadField::new("call_id", "1 to 64 visible ASCII characters")),
    }
}

impl Line {
    /// The tokens that the call with this id admitted. `None` if there was none, or it is forgotten: see
    /// [`crate::CALLS_KEPT`].
    pub fn called(&self, call_id: &str) -> Option<&[CalledToken]> {
        self.calls.get(call_id)
    }

    /// Whether waiting tokens are admitted without being called.
    pub(crate) fn admits_by_itself(&self) -> bool {
        if nowserving_bite::is(nowserving_bite::Break::S8Called) {
            return true;
        }
        self.settings.admission == Admission::Auto || !self.holds_back()
    }

    /// Admits the next `n` tokens, of all lanes or of one, as far as the line may admit now.
    pub(crate) fn call_next(
        &mut self,
        n: u32,
        lane: Option<&LaneName>,
        call_id: &str,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<Reply, Refused> {
        check_id(call_id)?;
        if self.calls.get(call_id).is_some() {
            return Ok(Reply::Called);
        }
        if !(1..=CALL_MAX).contains(&n) {
            return Err(BadField::new("n", format!("1 to {CALL_MAX}")).into());
        }
        self.check_open()?;
        let lane = match lane {
            Some(name) => {
                let id = self.listed_id(name);
                Some(id.ok_or_else(|| self.no_lane("lane", name))?)
            }
            None => None,
        };
        let mut admitted = Vec::new();
        while (admitted.len() as u64) < u64::from(n)
            && self.may_admit(ctx.now_ms)
            && let Some((id, by)) = self.next_called(lane)
            && let Some(token) = self.lanes[usize::from(id)].waiting.first()
        {
            if self.note_silence(ctx) {
                continue;
            }
            admitted.push(self.admit_called((id, token), by, ctx));
        }
        self.calls.remember(call_id, admitted);
        Ok(Reply::Called)
    }

    /// The lane whose first token is next, and how it is admitted.
    fn next_called(&self, lane: Option<u8>) -> Option<(u8, AdmittedBy)> {
        match lane {
            Some(id) => Some((id, AdmittedBy::Call)),
            None => self.next_lane().map(|id| (id, AdmittedBy::Turn)),
        }
    }

    /// Admits this token, whoever waits before it. One that holds a seat already is only answered with.
    pub(crate) fn take(
        &mut self,
        by: &TakeBy,
        call_id: Option<&str>,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<Reply, Refused> {
        if let Some(id) = call_id {
            check_id(id)?;
            if self.calls.get(id).is_some() {
                return Ok(Reply::Called);
            }
        }
        self.check_open()?;
        let at = self.resolve(self.taken_token(by)?);
        let waits = match self.open_live(at) {
            Err(Refused::TicketInvalid) => return Err(Refused::TokenNotFound),
            live => !live?.holds_seat(),
        };
        if waits {
            self.check_admits(ctx.now_ms)?;
        }
        let token = match waits {
            true => {
                self.note_silence(ctx);
                self.admit_called((at.lane, at.token), AdmittedBy::Take, ctx)
            }
            false => self.called_token((at.lane, at.token)),
        };
        Ok(match call_id {
            Some(id) => {
                self.calls.remember(id, vec![token]);
                Reply::Called
            }
            None => Reply::Token(at),
        })
    }

    fn taken_token(&self, by: &TakeBy) -> Result<TokenRef, Refused> {
        match by {
            TakeBy::Key(key) => self.find(key).ok_or(Refused::TokenNotFound),
            TakeBy::Number { lane, token } => {
                let id = self.lane_id(lane);
                let id = id.ok_or_else(|| self.no_lane("lane", lane))?;
                Ok(self.token_ref(id, *token))
            }
        }
    }

    /// Refused unless a waiting token may be admitted now.
    fn check_admits(&self, now_ms: u64) -> Result<(), CannotAdmit> {
        if !self.phase().admits() {
            Err(CannotAdmit::Phase)
        } else if self.is_undrawn() {
            Err(CannotAdmit::Draw)
        } else if !self.holds_back() {
            Ok(())
        } else if self.quota_left() == 0 {
            Err(CannotAdmit::Quota)
        } else if self.held() >= self.seats_at(now_ms).into() {
            Err(CannotAdmit::Seats)
        } else if !self.may_admit(now_ms) {
            Err(CannotAdmit::AdmissionRate)
        } else {
            Ok(())
        }
    }

    fn admit_called(
        &mut self,
        at: (u8, Token),
        by: AdmittedBy,
        ctx: &mut ApplyCtx<'_>,
    ) -> CalledToken {
        self.admit_token(at, by, ctx);
        // A call admits as many as were asked for: repeated, it could not go on. So it is not cut to the rest of the
        // entry's work; the leader keeps the calls of one entry within `CALL_MAX`. Background work has what is left.
        *ctx.work_left = ctx.work_left.saturating_sub(1);
        self.called_token(at)
    }

    fn called_token(&self, (lane, token): (u8, Token)) -> CalledToken {
        let key = |live: Live<'_>| live.key.map(Into::into);
        CalledToken {
            lane,
            token,
            key: self.live(lane, token).and_then(key),
        }
    }

    /// For dumps: whether all tokens of calls were issued.
    pub(crate) fn has_issued_called(&self) -> bool {
        self.calls.items().all(|item| match item {
            CallItem::Call(_) => true,
            CallItem::Admitted(CalledToken { lane, token, key }) => {
                let fits = key.is_none_or(|key| (1..=KEY_BYTES_MAX).contains(&key.len()));
                let lane = self.lanes.get(usize::from(lane));
                fits && lane.is_some_and(|lane| (1..lane.next_token).contains(&token))
            }
        })
    }
}
