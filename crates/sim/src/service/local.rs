//! A subscription as its node's client library knows it.

use std::collections::VecDeque;
use std::rc::Rc;

use nowserving_engine::Via;
use nowserving_front::gather::Config;
use nowserving_front::subscriptions::Reader;

use crate::nats::Message;
use crate::timeline::Time;

/// Nobody routes to a subscription so long after another node has taken its place.
const DRAINED_US: Time = 300_000;

#[derive(Debug)]
pub struct Local {
    pub subject: Rc<str>,
    pub group: Option<&'static str>,
    pub reader: Reader,
    /// Since when another node may listen in its place.
    drains_from: Option<Time>,
    pub closed: bool,
    /// A message that the server has routed to it as it ended is lost: no other node has it.
    pub may_lose: bool,
    pub queue: VecDeque<Message>,
    pub reading: bool,
}

impl Local {
    pub fn new(subject: Rc<str>, group: Option<&'static str>, reader: Reader) -> Local {
        Local {
            subject,
            group,
            reader,
            drains_from: None,
            closed: false,
            may_lose: false,
            queue: VecDeque::new(),
            reading: false,
        }
    }

    pub fn forward_only(&mut self, now: Time) {
        self.reader.forward_only();
        self.drains_from = Some(now);
    }

    /// Its end. The contract says where a message may be lost by it: on subjects where one node of a group gets each. On
    /// those of any node others are in the group all the time. A leader leaves its own once the next leader may have joined
    /// the group. The next leader gets what comes on the other subjects of a shard, too, so nothing is lost there.
    pub fn end(&mut self, config: &Config, now: Time) {
        let leaders = |shard| *self.subject == config.subjects.limit_leader_all(shard);
        let drained = |from: Time| now >= from + DRAINED_US;
        self.may_lose = match self.reader.next().0 {
            Via::Plain if (0..config.shards).any(leaders) => self.drains_from.is_some_and(drained),
            Via::Plain => true,
            Via::Shard(_) | Via::Forwarded => false,
        };
        self.closed = true;
    }
}

#[cfg(test)]
mod tests {
    use nowserving_engine::ShardDelivery;
    use nowserving_front::who::TrustRequestInfo;
    use nowserving_protocol::subject::Subjects;

    use super::*;

    #[test]
    fn where_one_node_of_a_group_gets_a_message_it_may_be_lost_at_the_end_of_a_subscription() {
        let subjects = Subjects::default();
        let config = Config {
            subjects: subjects.clone(),
            forward: subjects.clone(),
            shards: 2,
            me: 1,
            trust: TrustRequestInfo(false),
            seed: 0,
            since_ms: 0,
        };
        let may_lose = |subject: String, via, drains_from, ended_at| {
            let mut local = Local::new(subject.into(), Some("group"), Reader::new(via, 0));
            if let Some(from) = drains_from {
                local.forward_only(from);
            }
            local.end(&config, ended_at);
            local.may_lose
        };
        let (from, drained) = (1_000, 1_000 + DRAINED_US);
        let (plain, checks) = (subjects.line_all(), subjects.limit_leader_all(1));
        assert!(may_lose(plain, Via::Plain, None, from));
        assert!(may_lose(checks.clone(), Via::Plain, Some(from), drained));
        assert!(!may_lose(
            checks.clone(),
            Via::Plain,
            Some(from),
            drained - 1
        ));
        assert!(!may_lose(checks, Via::Plain, None, drained));
        let via = Via::Shard(ShardDelivery::Leaderless);
        assert!(!may_lose(subjects.shard_all(1), via, Some(from), drained));
        assert!(!may_lose(
            subjects.shard_all(1),
            Via::Forwarded,
            None,
            drained
        ));
    }
}
