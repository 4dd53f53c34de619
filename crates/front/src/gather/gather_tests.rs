#![allow(clippy::unwrap_used)]
use nowserving_engine::RelayedAnswer;
use nowserving_engine::refusals::overloaded;
use nowserving_line::LineName;
use nowserving_protocol::admin::{ConfigureLinesReply, LineList, LineSummary};
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::error::Code;
use nowserving_protocol::header::REQUEST_ID_HEADER;
use serde::Serialize;

use super::intake::{CHECKS_AT_ONCE, OPERATORS_AT_ONCE};
use super::*;
use crate::forward;
use crate::routes::Route;
use crate::testing::Owned;

pub(crate) const LEADER: Subscription = Subscription::Leader { term: 1 };
pub(crate) const START: Now = Now {
    us: 7_000_000,
    wall_ms: 1_766_222_333_444,
};

/// A node, of whose outputs a test answers each.
pub(crate) struct Test {
    config: Config,
    pub gather: Gather,
    pub now: Now,
    pub requests: Vec<NodeRequest>,
    pub replies: Vec<Result<Vec<u8>, ApiError>>,
    engine: Vec<(u64, Input)>,
}

impl Test {
    pub fn start(shards: u32) -> Test {
        let subjects = Subjects::default();
        let config = Config {
            forward: forward::subjects(&subjects).unwrap(),
            subjects,
            shards,
            me: 1,
            trust: TrustRequestInfo(false),
            seed: 7,
            since_ms: 0,
        };
        Test {
            gather: Gather::new(config.clone()),
            config,
            now: START,
            requests: Vec::new(),
            replies: Vec::new(),
            engine: Vec::new(),
        }
    }

    pub fn take(&mut self, message: &Owned) {
        let route = match message.subject.ends_with("configure_lines") {
            true => Route::ManyLines,
            false => Route::Limits,
        };
        let arrived = Arrived::of(&self.config, &message.view(), route, self.now, None);
        if let Some(admitted) = self.gather.admit(arrived) {
            let read = admitted.read(&self.config, &message.view(), self.now);
            self.gather.begin(read, self.now);
        }
        self.run();
    }

    /// So much time passes, with all that is due in it.
    pub fn pass(&mut self, us: Micros) {
        let end = self.now.us + us;
        while let Some(due) = self.gather.next_due()
            && due <= end
        {
            self.now.us = due;
            self.gather.tick(self.now);
            self.run();
        }
        self.now.us = end;
    }

    pub fn run(&mut self) {
        for output in self.gather.take_outputs() {
            match output {
                Output::Request(request) => self.requests.push(request),
                Output::Engine { id, input } => self.engine.push((id, input)),
                Output::Reply { to, result } => {
                    let encoded = result.map(|reply| reply.encode(to.format));
                    self.replies.push(encoded);
                }
            }
        }
    }

    /// What was sent since.
    pub fn sent(&mut self) -> Vec<NodeRequest> {
        self.run();
        std::mem::take(&mut self.requests)
    }

    pub fn engine(&mut self) -> Vec<(u64, Input)> {
        self.run();
        std::mem::take(&mut self.engine)
    }

    pub fn answers(&mut self, request: &NodeRequest, body: &impl Serialize) {
        let answer = RelayedAnswer {
            headers: Vec::new(),
            payload: encode(body, Format::MsgPack).into(),
        };
        let result = ForwardResult::Answered {
            error: None,
            answer,
        };
        self.gather.answered(request.id, result, self.now);
        self.run();
    }

    /// The only reply since.
    pub fn reply(&mut self) -> Result<Vec<u8>, ApiError> {
        self.run();
        assert_eq!(self.replies.len(), 1, "{:?}", self.requests);
        self.replies.remove(0)
    }
}

fn check(nth: usize) -> Owned {
    let payload = format!(r#"{{"descriptors": [[{{"key": "ip", "value": "{nth}"}}]]}}"#);
    Owned::new("nowserving.limit.shop.check", payload.into_bytes())
}

#[test]
fn checks_leave_operators_their_places() {
    let mut test = Test::start(4);
    for nth in 0..CHECKS_AT_ONCE {
        test.take(&check(nth));
    }
    assert!(test.replies.is_empty());
    test.take(&check(0));
    assert_eq!(test.reply(), Err(overloaded()));
    let show = Owned::new("nowserving.admin.limit.show", b"{}".to_vec());
    for _ in 0..OPERATORS_AT_ONCE {
        test.take(&show);
    }
    assert!(test.replies.is_empty());
    test.take(&show);
    assert_eq!(test.reply(), Err(overloaded()));
    test.gather.learn(Arc::default(), test.now);
    test.run();
    assert_eq!(test.replies.len(), CHECKS_AT_ONCE + OPERATORS_AT_ONCE);
    test.replies.clear();
    test.take(&check(0));
    assert!(test.reply().is_ok(), "what has ended leaves its place");
}

/// So that a node with too many requests does not have to read more of them.
#[test]
fn a_request_without_a_place_is_not_read() {
    let mut test = Test::start(4);
    test.gather.stop();
    test.take(&Owned::new(
        "nowserving.limit.shop.check",
        b"nothing".to_vec(),
    ));
    assert_eq!(test.reply(), Err(overloaded()));
}

/// One that cannot be read leaves its place, too.
#[test]
fn a_request_that_cannot_be_read_is_answered_once() {
    let mut test = Test::start(4);
    test.take(&Owned::new(
        "nowserving.limit.shop.check",
        b"nothing".to_vec(),
    ));
    assert_eq!(
        test.reply().map_err(|error| error.code),
        Err(Code::BadRequest)
    );
    assert!(test.gather.is_idle());
}

#[test]
fn a_work_waits_for_the_time_that_it_named_last() {
    let mut test = Test::start(4);
    test.take(&check(0));
    for _ in 0..3 {
        // Nothing that it waits for.
        test.gather.follow([(1, LEADER)], test.now);
    }
    assert_eq!(test.gather.due.len(), 1);
    test.gather.learn(Arc::default(), test.now);
    assert!(test.reply().is_ok());
    assert_eq!(test.gather.next_due(), None);
}

#[test]
fn a_node_that_stops_takes_no_more_and_ends_what_it_has() {
    let mut test = Test::start(4);
    test.take(&check(0));
    test.gather.stop();
    test.take(&check(1));
    assert_eq!(test.reply(), Err(overloaded()));
    assert!(!test.gather.is_idle());
    test.gather.learn(Arc::default(), test.now);
    assert!(test.reply().is_ok());
    assert!(test.gather.is_idle());
}

fn configure_lines(dry_run: bool) -> Owned {
    let body =
        serde_json::json!({"labels": {"shop": "a"}, "set": {"seats": 5}, "dry_run": dry_run});
    let subject = "nowserving.admin.cluster.configure_lines";
    Owned::new(subject, body.to_string().into_bytes())
}

fn summary(nth: usize) -> LineSummary {
    LineSummary {
        line: LineName::try_from(format!("line-{nth}").as_str()).unwrap(),
        incarnation: 1,
        version: 1,
        phase: "open".to_owned(),
        seats: 1,
        queue_limit: 1,
        waiting: 0,
        admitted: 0,
        in_checkout: 0,
        labels: BTreeMap::new(),
    }
}

#[test]
fn many_lines_are_asked_a_few_at_a_time_and_told_in_their_order() {
    let mut test = Test::start(4);
    test.take(&configure_lines(false));
    let page = test.sent().remove(0);
    assert_eq!(page.subject, "nowserving.admin.cluster.list_lines");
    let is_named = |it: &NodeRequest| {
        it.headers
            .iter()
            .any(|(name, _)| *name == REQUEST_ID_HEADER)
    };
    assert!(!is_named(&page));
    let lines: Vec<_> = (0..40).map(summary).collect();
    let next = None;
    test.answers(&page, &LineList { lines, next });
    let mut open = test.sent();
    assert_eq!(open.len(), 16);
    assert_eq!(open[0].subject, "nowserving.admin.line.line-0.show");
    // The last first.
    while let Some(show) = open.pop() {
        test.gather
            .answered(show.id, ForwardResult::NoResponders, test.now);
        open.extend(test.sent());
        assert!(open.len() <= 16);
    }
    let reply: ConfigureLinesReply = serde_json::from_slice(&test.reply().unwrap()).unwrap();
    let names: Vec<_> = reply.lines.iter().map(|it| it.line.clone()).collect();
    assert_eq!(
        names,
        (0..40).map(|nth| summary(nth).line).collect::<Vec<_>>()
    );
    assert!(reply.lines.iter().all(|it| it.error == Some(unavailable())));
}

#[test]
fn a_page_that_nobody_answers_is_an_error() {
    let mut test = Test::start(4);
    test.take(&configure_lines(true));
    let page = test.sent().remove(0);
    test.gather
        .answered(page.id, ForwardResult::NoResponders, test.now);
    assert_eq!(test.reply(), Err(unavailable()));
}
