//! This node's subscriptions for requests: in which order they are made and ended, and what is known of the messages
//! that come by them. On a role change a node subscribes for its new role before it unsubscribes the old one.

use std::collections::{BTreeMap, VecDeque};

use nowserving_engine::{ShardDelivery, Subscription, Via};
use nowserving_protocol::subject::Subjects;
use nowserving_shard::clock::Micros;

/// On subjects that any node may take, the nodes share the work in this group.
const QUEUE_GROUP: &str = "nowserving";

/// For how long a node drains its subscriptions to the subjects of a shard that it led, or that nobody
/// led. A request that the server routed before it saw this node unsubscribe would be lost: the client library
/// forgets a subscription when it sends the server word, not when the server has it. By the end of this
/// the next leader has subscribed too.
const DRAIN_US: Micros = 400_000;

/// Names a subscription for as long as the node runs.
pub type SubscriptionId = u64;

/// Done in the order in which they come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Subscribe {
        id: SubscriptionId,
        subject: String,
        /// Each message goes to one of those who subscribe in the group.
        group: Option<&'static str>,
        reader: Reader,
    },
    /// From now on its messages are marked by [`Reader::forward_only`].
    ForwardOnly(SubscriptionId),
    /// Messages that have arrived by then are still handled.
    Unsubscribe(SubscriptionId),
}

/// What is known of the messages of one subscription, when they are read.
///
/// The connection gives messages to their subscriptions in the order in which they came. So after a probe
/// came back, and this subscription was empty after that, what it brings was routed after the probe was
/// sent. Nothing else would tell: a process that was stopped, or a connection that stalled, reads old
/// messages as if they were new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    via: Via,
    routed_after: Micros,
}

impl Reader {
    #[must_use]
    pub fn new(via: Via, subscribed_at: Micros) -> Reader {
        Reader {
            via,
            routed_after: subscribed_at,
        }
    }

    /// How the next message comes, and a moment after which NATS has routed it to this node.
    #[must_use]
    pub fn next(&self) -> (Via, Micros) {
        if nowserving_bite::is(nowserving_bite::Break::S14Unread) {
            return (self.via, Micros::MAX);
        }
        (self.via, self.routed_after)
    }

    /// A replacement may get the messages from now on, too.
    pub fn forward_only(&mut self) {
        if matches!(self.via, Via::Shard(_)) {
            self.via = Via::Shard(ShardDelivery::Draining);
        }
    }

    /// No message lies in the subscription, and a probe that was sent then has come back.
    pub fn found_empty(&mut self, probed: Micros) {
        self.routed_after = self.routed_after.max(probed);
    }
}

#[derive(Debug, Default)]
struct OfShard {
    role: Subscription,
    /// For clients and operators.
    front: Vec<SubscriptionId>,
    /// For requests that nodes forward. Only while this node leads: a forwarding node would take its "not the leader"
    /// for the next leader's answer.
    leading: Vec<SubscriptionId>,
}

/// All subscriptions of a node for requests.
#[derive(Debug)]
pub struct Subscriptions {
    subjects: Subjects,
    /// On which nodes forward requests: only leaders subscribe there.
    forward: Subjects,
    /// So many so far.
    made: SubscriptionId,
    plain: Vec<SubscriptionId>,
    shards: BTreeMap<u32, OfShard>,
    /// Until when, in order.
    draining: VecDeque<(Micros, SubscriptionId)>,
}

impl Subscriptions {
    #[must_use]
    pub fn new(subjects: Subjects, forward: Subjects) -> Subscriptions {
        Subscriptions {
            subjects,
            forward,
            made: 0,
            plain: Vec::new(),
            shards: BTreeMap::new(),
            draining: VecDeque::new(),
        }
    }

    /// While this node takes part, it listens on what every node listens on: plain and admin subjects,
    /// malformed ones too.
    pub fn take_part(&mut self, takes_part: bool, now: Micros) -> Vec<Change> {
        let mut changes = Vec::new();
        if takes_part && self.plain.is_empty() {
            let subjects = [
                self.subjects.line_all(),
                self.subjects.admin_line_all(),
                self.subjects.admin_cluster_all(),
                self.subjects.kv_all(),
                self.subjects.admin_kv_all(),
                self.subjects.limit_all(),
                self.subjects.admin_limit_all(),
            ];
            let reader = Reader::new(Via::Plain, now);
            self.plain = self.subscribe(subjects, Some(QUEUE_GROUP), reader, &mut changes);
        } else if !takes_part {
            changes.extend(self.plain.drain(..).map(Change::Unsubscribe));
        }
        changes
    }

    /// Follows the role that the engine has in a shard.
    pub fn follow(&mut self, shard: u32, role: Subscription, now: Micros) -> Vec<Change> {
        let mut old = self.shards.remove(&shard).unwrap_or_default();
        let mut changes = Vec::new();
        if old.role == role {
            self.shards.insert(shard, old);
            return changes;
        }
        // A message that the server routes to both an old and a new subscription must be taken once.
        changes.extend(old.front.iter().copied().map(Change::ForwardOnly));
        changes.extend(old.leading.drain(..).map(Change::Unsubscribe));
        let front = |delivery| Reader::new(Via::Shard(delivery), now);
        let subjects = on(&self.subjects, shard);
        let mut new = OfShard {
            role,
            ..OfShard::default()
        };
        match role {
            Subscription::No => {}
            Subscription::Leader { .. } => {
                // First: a node that gets the same request as this one forwards it to this subject.
                let forwarded = Reader::new(Via::Forwarded, now);
                let forward = on(&self.forward, shard);
                new.leading = self.subscribe(forward, None, forwarded, &mut changes);
                // In the group: while a former leader drains, one of them gets a check, and it counts once. The former
                // one asks the next leader, as any node does.
                let checks = [self.subjects.limit_leader_all(shard)];
                let reader = Reader::new(Via::Plain, now);
                new.front = self.subscribe(checks, Some(QUEUE_GROUP), reader, &mut changes);
                let reader = front(ShardDelivery::Leader);
                let shards = self.subscribe(subjects, None, reader, &mut changes);
                new.front.extend(shards);
            }
            Subscription::Leaderless => {
                let reader = front(ShardDelivery::Leaderless);
                new.front = self.subscribe(subjects, Some(QUEUE_GROUP), reader, &mut changes);
            }
        }
        self.shards.insert(shard, new);
        // Only now are the old ones closed, so that there is always a subscription: on a busy connection this
        // takes time.
        let until = now + DRAIN_US;
        let until = match nowserving_bite::is(nowserving_bite::Break::L2Drain) {
            true => now,
            false => until,
        };
        self.draining
            .extend(old.front.into_iter().map(|id| (until, id)));
        changes.extend(self.drained(now));
        changes
    }

    /// The engine has ended: this node leads nothing.
    pub fn end(&mut self, now: Micros) -> Vec<Change> {
        let shards: Vec<u32> = self.shards.keys().copied().collect();
        let ended = shards
            .into_iter()
            .map(|shard| self.follow(shard, Subscription::No, now));
        ended.collect::<Vec<_>>().concat()
    }

    /// When [`drained`](Self::drained) is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Micros> {
        self.draining.front().map(|(until, _)| *until)
    }

    /// The subscriptions that were drained for long enough end.
    pub fn drained(&mut self, now: Micros) -> Vec<Change> {
        let over = self.draining.iter().take_while(|(until, _)| *until <= now);
        let over = over.count();
        let ended = self.draining.drain(..over);
        ended.map(|(_, id)| Change::Unsubscribe(id)).collect()
    }

    fn subscribe<const N: usize>(
        &mut self,
        subjects: [String; N],
        group: Option<&'static str>,
        reader: Reader,
        changes: &mut Vec<Change>,
    ) -> Vec<SubscriptionId> {
        let first = self.made + 1;
        self.made += N as SubscriptionId;
        let named = (first..).zip(subjects);
        changes.extend(named.map(|(id, subject)| Change::Subscribe {
            id,
            subject,
            group,
            reader,
        }));
        (first..=self.made).collect()
    }
}

fn on(subjects: &Subjects, shard: u32) -> [String; 2] {
    [subjects.shard_all(shard), subjects.admin_shard_all(shard)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEADER: Subscription = Subscription::Leader { term: 2 };

    fn subscriptions() -> Subscriptions {
        let forward = Subjects::new("nowserving.forward").unwrap_or_default();
        Subscriptions::new(Subjects::default(), forward)
    }

    /// In few words: `+` subscribed, with `*` in a group, `>` only forwards, `-` unsubscribed.
    fn words(changes: Vec<Change>) -> Vec<String> {
        let word = |change| match change {
            Change::Subscribe {
                id, subject, group, ..
            } => {
                let group = if group.is_some() { "*" } else { "" };
                format!("+{id}{group} {subject}")
            }
            Change::ForwardOnly(id) => format!(">{id}"),
            Change::Unsubscribe(id) => format!("-{id}"),
        };
        changes.into_iter().map(word).collect()
    }

    #[test]
    fn a_node_subscribes_for_its_new_role_before_it_unsubscribes_the_old_one() {
        let mut it = subscriptions();
        let leaderless = it.follow(3, Subscription::Leaderless, 0);
        assert_eq!(
            words(leaderless),
            ["+1* nowserving.shard.3.>", "+2* nowserving.admin.shard.3.>"]
        );
        let leads = [
            ">1",
            ">2",
            // A node that gets a request beside the leader passes it on to there.
            "+3 nowserving.forward.shard.3.>",
            "+4 nowserving.forward.admin.shard.3.>",
            "+5* nowserving.leader.3.limit.>",
            "+6 nowserving.shard.3.>",
            "+7 nowserving.admin.shard.3.>",
        ];
        assert_eq!(words(it.follow(3, LEADER, 1_000)), leads);
        assert_eq!(it.follow(3, LEADER, 2_000), []);
        assert_eq!(it.next_due(), Some(1_000 + DRAIN_US));
        assert_eq!(it.drained(DRAIN_US), []);
        assert_eq!(words(it.drained(1_000 + DRAIN_US)), ["-1", "-2"]);
        assert_eq!(it.next_due(), None);
        // It takes no forwards any more, and drains the rest: a check of limits that the server has routed is lost
        // otherwise.
        let follows = words(it.follow(3, Subscription::No, 2_000_000));
        assert_eq!(follows, [">5", ">6", ">7", "-3", "-4"]);
        assert_eq!(words(it.drained(2_000_000 + DRAIN_US)), ["-5", "-6", "-7"]);
    }

    #[test]
    fn between_two_terms_of_its_own_a_leader_subscribes_anew() {
        let mut it = subscriptions();
        it.follow(3, LEADER, 0);
        let newer = words(it.follow(3, Subscription::Leader { term: 4 }, 0));
        assert_eq!(newer[..5], [">3", ">4", ">5", "-1", "-2"]);
        assert_eq!(newer.len(), 10);
        assert_eq!(words(it.end(0)), [">8", ">9", ">10", "-6", "-7"]);
        let drained = ["-3", "-4", "-5", "-8", "-9", "-10"];
        assert_eq!(words(it.drained(DRAIN_US)), drained);
    }

    #[test]
    fn plain_subjects_are_subscribed_to_while_the_node_takes_part() {
        let mut it = subscriptions();
        assert_eq!(it.take_part(false, 0), []);
        let subscribed = words(it.take_part(true, 0));
        assert_eq!(subscribed.len(), 7);
        assert_eq!(subscribed[0], "+1* nowserving.line.>");
        assert_eq!(it.take_part(true, 0), []);
        assert_eq!(words(it.take_part(false, 0)).len(), 7);
        assert_eq!(words(it.take_part(true, 0))[0], "+8* nowserving.line.>");
    }

    #[test]
    fn what_comes_by_a_subscription_that_was_empty_was_routed_after_the_probe() {
        let mut reader = Reader::new(Via::Shard(ShardDelivery::Leader), 10);
        assert_eq!(reader.next(), (Via::Shard(ShardDelivery::Leader), 10));
        reader.found_empty(7);
        assert_eq!(reader.next().1, 10);
        reader.found_empty(20);
        reader.forward_only();
        assert_eq!(reader.next(), (Via::Shard(ShardDelivery::Draining), 20));
        let mut forwarded = Reader::new(Via::Forwarded, 10);
        forwarded.forward_only();
        assert_eq!(forwarded.next().0, Via::Forwarded);
    }
}
