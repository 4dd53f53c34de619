//! The real line, with a leader that does what a node's does: it recycles who is due, goes on with
//! jobs, and remembers in its own memory who was heard from.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use nowserving_line::{
    Change, Event, Line, LineName, Lines, Live, Op, Phase, RECYCLE_MAX, RecycleItem, Reply,
    Settings, SettingsPatch, Stamp, State, Status, TokenChange, TokenRef,
};

use crate::config::BadConfig;
use crate::queue::{Answer, Ask, Happened, Place, Pointers, Queue, Standing};

/// The leader looks for what is due this often.
const UPKEEP_EVERY_MS: u64 = 100;

/// One line of its own, and its leader.
#[derive(Debug)]
pub(crate) struct Real {
    lines: Lines,
    name: LineName,
    incarnation: u64,
    /// Of the newest log entry; each operation is one.
    index: u64,
    events: Vec<Event>,
    happened: Vec<Happened>,
    /// When each token was last heard from while it waited, by lane and number; 0 before that.
    /// (Written at each poll: a tree took some 8 % of a run with a million shoppers.)
    heard: Vec<Vec<u64>>,
    /// When to look at whom. Whoever was heard from since is only scheduled anew then, so that a
    /// poll costs nothing here.
    due: BinaryHeap<Reverse<(u64, Place)>>,
}

impl Real {
    pub(crate) fn new(settings: &Settings) -> Result<Self, BadConfig> {
        let name = LineName::try_from("rehearsal");
        let name = name.map_err(|bad| BadConfig::Line(bad.to_string()))?;
        let mut real = Self {
            lines: Lines::new(),
            name: name.clone(),
            incarnation: 0,
            index: 0,
            events: Vec::new(),
            happened: Vec::new(),
            heard: Vec::new(),
            due: BinaryHeap::new(),
        };
        let create = Op::Create {
            line: name,
            settings: settings.clone(),
        };
        real.apply(0, &create);
        let line = real.line();
        let line = line.ok_or_else(|| BadConfig::Line("refused".to_owned()))?;
        real.incarnation = line.incarnation();
        Ok(real)
    }

    fn line(&self) -> Option<&Line> {
        self.lines.get(&self.name)
    }

    /// The answer about the token, if the operation is about one and is not refused.
    fn apply(&mut self, now_ms: u64, op: &Op) -> Option<Answer> {
        let answer = self.apply_one(now_ms, op);
        // A node proposes the next step in its next turn, which is well within a millisecond. The
        // number of steps is bounded by the work that there is.
        while self.lines.background_work(now_ms).next().is_some() {
            let step = Op::RunBackground {
                line: self.name.clone(),
                incarnation: self.incarnation,
            };
            self.apply_one(now_ms, &step);
        }
        answer
    }

    fn apply_one(&mut self, now_ms: u64, op: &Op) -> Option<Answer> {
        self.index += 1;
        let stamp = Stamp {
            index: self.index,
            op_no: 0,
            now_ms,
            // Here time is virtual, and there is only one.
            wall_ms: now_ms,
        };
        let reply = self.lines.apply(stamp, op, Some(&mut self.events));
        for event in std::mem::take(&mut self.events) {
            self.follow(&event);
        }
        match reply {
            Ok(Reply::Token(at)) => Some(answer(&self.line()?.status(at, now_ms).ok()?)),
            _ => None,
        }
    }

    fn follow(&mut self, event: &Event) {
        let Event::Token {
            lane_id,
            token,
            what,
            ..
        } = event
        else {
            return;
        };
        let place = (*lane_id, *token);
        match *what {
            TokenChange::Admitted => {
                self.happened.push(Happened::Admitted(place));
                self.schedule(place);
            }
            TokenChange::Claimed => self.schedule(place),
            TokenChange::CallAhead | TokenChange::Moved { .. } => {}
            TokenChange::Gone { reason, .. } => {
                self.happened.push(Happened::Gone { place, reason });
            }
        }
    }

    /// When a live token is to go, for all that the leader knows.
    fn due_ms(&self, line: &Line, place: Place, live: &Live) -> u64 {
        let due_ms = line.due_at_ms(live);
        if live.state() != State::Waiting {
            return due_ms;
        }
        let heard = self.heard.get(usize::from(place.0));
        let heard_ms = heard.and_then(|lane| lane.get(place.1 as usize));
        due_ms + heard_ms.map_or(0, |heard_ms| heard_ms.saturating_sub(live.clock_ms()))
    }

    fn hear(&mut self, now_ms: u64, place: Place) {
        let (lane, token) = (usize::from(place.0), place.1 as usize);
        if self.heard.len() <= lane {
            self.heard.resize(lane + 1, Vec::new());
        }
        let heard = &mut self.heard[lane];
        if heard.len() <= token {
            heard.resize(token + 1, 0);
        }
        heard[token] = now_ms;
    }

    fn schedule(&mut self, place: Place) {
        let line = self.line();
        let live = line.and_then(|line| Some((line, line.live(place.0, place.1)?)));
        if let Some((line, live)) = live {
            let due_ms = self.due_ms(line, place, live);
            self.due.push(Reverse((due_ms, place)));
        }
    }

    fn find_due(&mut self, now_ms: u64) -> Vec<RecycleItem> {
        let mut items = Vec::new();
        let mut again = Vec::new();
        while let Some(Reverse((due_ms, place))) = self.due.peek().copied()
            && due_ms <= now_ms
            && items.len() < RECYCLE_MAX
        {
            self.due.pop();
            let line = self.line();
            let Some((line, live)) = line.and_then(|l| Some((l, l.live(place.0, place.1)?))) else {
                continue;
            };
            let due_ms = self.due_ms(line, place, live);
            if due_ms > now_ms {
                again.push(Reverse((due_ms, place)));
            } else {
                items.push(RecycleItem {
                    lane: place.0,
                    token: place.1,
                    state: live.state(),
                    clock_ms: live.clock_ms(),
                });
            }
        }
        self.due.extend(again);
        items
    }

    fn at(&self, place: Place) -> TokenRef {
        TokenRef {
            incarnation: self.incarnation,
            lane: place.0,
            token: place.1,
        }
    }

    fn poll(&mut self, now_ms: u64, place: Place) -> Option<Answer> {
        let at = self.at(place);
        let status = self.line()?.status(at, now_ms).ok()?;
        if status.state == State::Waiting {
            self.hear(now_ms, place);
        }
        Some(answer(&status))
    }

    fn change(&mut self, now_ms: u64, place: Place, op: &Op) -> Option<Answer> {
        // Refused: the token is in another state than its holder thought. A backend polls then.
        let answer = self.apply(now_ms, op);
        answer.or_else(|| self.poll(now_ms, place))
    }
}

fn answer(status: &Status) -> Answer {
    Answer {
        place: (status.at.lane, status.at.token),
        standing: match status.state {
            State::Waiting => Standing::Waiting,
            State::Admitted => Standing::Admitted,
            State::InCheckout => Standing::InCheckout,
            State::Gone => Standing::Gone,
        },
        eta_ms: status.eta_ms,
        eta_p90_ms: status.eta_p90_ms,
        poll_after_ms: Some(status.poll_after_ms),
        epoch: status.epoch,
    }
}

impl Queue for Real {
    fn ask(&mut self, now_ms: u64, who: u32, ask: Ask) -> Option<Answer> {
        let line = self.name.clone();
        match ask {
            Ask::Enter { lane } => {
                let key = Some(who.to_le_bytes().into());
                let lane = self.line()?.settings().lanes.get(usize::from(lane));
                let lane = lane.map(|lane| lane.name.clone());
                let op = Op::Enter { line, key, lane };
                let answer = self.apply(now_ms, &op)?;
                self.schedule(answer.place);
                Some(answer)
            }
            Ask::Poll(place) => self.poll(now_ms, place),
            Ask::Claim(place) => {
                let at = self.at(place);
                self.change(now_ms, place, &Op::Claim { line, at })
            }
            Ask::Renew(place, epoch) => {
                let (at, epoch) = (self.at(place), epoch?);
                let answer = self.change(now_ms, place, &Op::Renew { line, at, epoch });
                self.schedule(place);
                answer
            }
            Ask::Complete(place, epoch) => {
                let at = self.at(place);
                self.change(now_ms, place, &Op::Complete { line, at, epoch })
            }
            Ask::Leave(place) => {
                let at = self.at(place);
                self.change(now_ms, place, &Op::Leave { line, at })
            }
        }
    }

    fn upkeep(&mut self, now_ms: u64) -> u64 {
        loop {
            let tokens = self.find_due(now_ms);
            if tokens.is_empty() {
                break;
            }
            let op = Op::Recycle {
                line: self.name.clone(),
                incarnation: self.incarnation,
                tokens,
            };
            self.apply(now_ms, &op);
        }
        // Its own wake-up comes first when the pace lets the next one in before that.
        let step = Op::RunBackground {
            line: self.name.clone(),
            incarnation: self.incarnation,
        };
        self.apply(now_ms, &step);
        let wake_ms = self
            .lines
            .next_background_ms()
            .filter(|wake_ms| *wake_ms > now_ms);
        wake_ms.unwrap_or(u64::MAX).min(now_ms + UPKEEP_EVERY_MS)
    }

    fn open(&mut self, now_ms: u64) {
        let patch = SettingsPatch {
            phase: Some(Change::Set(Phase::Open)),
            ..SettingsPatch::default()
        };
        let line = self.name.clone();
        let if_version = None;
        let op = Op::Configure {
            line,
            patch: patch.into(),
            if_version,
            incarnation: None,
        };
        self.apply(now_ms, &op);
    }

    fn happened(&mut self) -> Vec<Happened> {
        std::mem::take(&mut self.happened)
    }

    fn pointers(&self, now_ms: u64) -> Vec<Pointers> {
        let board = self.line().map(|line| line.board(now_ms));
        let lanes = board.into_iter().flat_map(|board| board.lanes);
        let pointers = lanes.map(|lane| Pointers {
            next_token: lane.next_token,
            done_through: lane.done_through,
            admitted_through: lane.admitted_through,
            accepts_through: lane.accepts_through,
        });
        pointers.collect()
    }

    fn order_key(&self, lane: u8, entered_ms: u64) -> (bool, i64) {
        // Its lanes never change, so their ids are their places in the settings.
        let lanes = self.line().map(|line| line.settings().lanes.as_slice());
        let set = lanes.and_then(|lanes| lanes.get(usize::from(lane)));
        let signed = |ms| i64::try_from(ms).unwrap_or(i64::MAX);
        let boost_ms = set.map_or(0, |set| set.boost_ms);
        let yields = set.is_none_or(|set| !set.absolute);
        (yields, signed(entered_ms) - signed(boost_ms))
    }

    fn newcomer_eta_ms(&self, now_ms: u64) -> Option<u64> {
        self.line()?.newcomer_eta_ms(now_ms)
    }
}
