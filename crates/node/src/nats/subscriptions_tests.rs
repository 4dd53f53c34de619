#![allow(clippy::unwrap_used)]
use std::task::Poll;

use futures::poll;
use nowserving_engine::{Delivery, Input, LeaderTime, Refusal, ShardDelivery};
use nowserving_protocol::subject::shard_of;
use tokio::task::JoinHandle;

use super::super::testing::{SHARDS, Sent, TestServer, TestService};
use super::*;

fn shard() -> u32 {
    shard_of("shop", SHARDS)
}

/// The subjects of the shard below this prefix.
fn subjects(prefix: &str, in_group: bool) -> [(String, bool); 2] {
    ["shard", "admin.shard"].map(|word| (format!("{prefix}.{word}.{}.>", shard()), in_group))
}

struct Listening {
    standing: watch::Sender<Standing>,
    stop: oneshot::Sender<()>,
    plain_closed: oneshot::Receiver<()>,
    task: JoinHandle<anyhow::Result<()>>,
}

fn waiting() -> Standing {
    Standing::Waiting("starting".into())
}

impl TestService {
    /// Listens, on plain subjects with this standing.
    fn listens(&self, standing: Standing) -> Listening {
        let (standing, known) = watch::channel(standing);
        let (stop, stopped) = oneshot::channel();
        let (closed, plain_closed) = oneshot::channel();
        let plain = PlainSubjects {
            standing: known,
            stop: stopped,
            closed,
        };
        Listening {
            standing,
            stop,
            plain_closed,
            task: tokio::spawn(self.service.clone().listen(Some(plain))),
        }
    }

    fn wants(&self, subscription: Subscription) {
        self.subscriptions.send_modify(|all| {
            all.insert(shard(), subscription);
        });
    }

    /// How a request that comes by this subscription is given to the engine.
    async fn delivered(&mut self, sid: u64) -> Delivery {
        let subject = format!("nowserving.shard.{}.shop.info", shard());
        self.server.deliver(sid, &subject, "_INBOX.1", b"{}");
        match self.next_input().await {
            Input::Request { delivery, .. } => delivery,
            other => panic!("{other:?}"),
        }
    }
}

impl TestServer {
    async fn next_unsubscribed(&mut self, count: usize) -> Vec<u64> {
        let mut sids = Vec::new();
        while sids.len() < count {
            match self.next().await {
                Sent::Unsubscribe { sid } => sids.push(sid),
                other => panic!("{other:?}"),
            }
        }
        sids.sort_unstable();
        sids
    }
}

/// To what a leader alone subscribes.
fn leading() -> [(String, bool); 3] {
    let [users, operators] = subjects("nowserving.forward", false);
    let checks = format!("nowserving.leader.{}.limit.>", shard());
    [users, operators, (checks, true)]
}

const LEADER: Via = Via::Shard(ShardDelivery::Leader);
const LEADERLESS: Via = Via::Shard(ShardDelivery::Leaderless);
const DRAINING: Via = Via::Shard(ShardDelivery::Draining);

#[tokio::test]
async fn a_node_subscribes_for_its_new_role_before_it_unsubscribes_the_old_one() {
    let mut test = TestService::start().await;
    let _listening = test.listens(waiting());
    test.wants(Subscription::Leaderless);
    let (front, leaderless) = test.server.next_subscribed().await;
    assert_eq!(front, subjects("nowserving", true));
    assert_eq!(test.delivered(leaderless[0]).await.via, LEADERLESS);

    test.wants(Subscription::Leader { term: 2 });
    // A node that gets a request beside the leader passes it on to there.
    let (forward, _) = test.server.next_subscribed().await;
    assert_eq!(forward, leading());
    let (front, leader) = test.server.next_subscribed().await;
    assert_eq!(front, subjects("nowserving", false));
    // What still comes by the old ones may have come by the new ones, too.
    assert_eq!(test.delivered(leaderless[1]).await.via, DRAINING);
    assert_eq!(test.delivered(leader[0]).await.via, LEADER);
    assert_eq!(test.server.next_unsubscribed(2).await, leaderless);
    assert_eq!(test.delivered(leader[1]).await.via, LEADER);
}

#[tokio::test]
async fn a_node_that_leads_no_more_takes_no_forwards_and_drains_the_rest() {
    let mut test = TestService::start().await;
    let _listening = test.listens(waiting());
    test.wants(Subscription::Leader { term: 2 });
    let (_, forward) = test.server.next_subscribed::<3>().await;
    let (_, front) = test.server.next_subscribed::<2>().await;
    test.wants(Subscription::No);
    let [users, operators, checks] = forward;
    assert_eq!(test.server.next_unsubscribed(2).await, [users, operators]);
    assert_eq!(test.delivered(front[0]).await.via, DRAINING);
    let [first, second] = front;
    let drained = [checks, first, second];
    assert_eq!(test.server.next_unsubscribed(3).await, drained);
}

#[tokio::test]
async fn when_the_engine_ends_the_node_unsubscribes_and_handles_the_rest() {
    let mut test = TestService::start().await;
    let listening = test.listens(waiting());
    test.wants(Subscription::Leaderless);
    let (_, front) = test.server.next_subscribed::<2>().await;
    let (engine, _) = watch::channel(BTreeMap::new());
    drop(std::mem::replace(&mut test.subscriptions, engine));
    assert_eq!(test.delivered(front[0]).await.via, DRAINING);
    assert_eq!(test.server.next_unsubscribed(2).await, front);
    listening.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_forwarded_request_carries_the_time_on_the_leaders_clock() {
    let mut test = TestService::start().await;
    let _listening = test.listens(waiting());
    test.wants(Subscription::Leader { term: 2 });
    let (_, forward) = test.server.next_subscribed::<3>().await;
    let subject = format!("nowserving.forward.shard.{}.shop.info", shard());
    let headers = "NATS/1.0\r\nNowserving-Leader-Time: 1f-200";
    test.server
        .deliver_with_headers(forward[0], &subject, headers, b"{}");
    let Input::Request { delivery, .. } = test.next_input().await else {
        panic!("not a request");
    };
    let sent = LeaderTime {
        start: 0x1f,
        us: 200,
    };
    assert_eq!(
        (delivery.via, delivery.forwarded_at),
        (Via::Forwarded, Some(sent))
    );
}

const PLAIN: [&str; 7] = [
    "line",
    "admin.line",
    "admin.cluster",
    "kv",
    "admin.kv",
    "limit",
    "admin.limit",
];

#[tokio::test]
async fn plain_subjects_are_subscribed_to_while_the_node_takes_part() {
    let mut test = TestService::start().await;
    let listening = test.listens(waiting());
    for _ in 0..2 {
        listening.standing.send_replace(Standing::InTouch);
        let mut sids = Vec::new();
        for word in PLAIN {
            let Sent::Subscribe {
                subject,
                in_group,
                sid,
            } = test.server.next().await
            else {
                panic!("not a subscription");
            };
            assert_eq!((subject, in_group), (format!("nowserving.{word}.>"), true));
            sids.push(sid);
        }
        let subject = "nowserving.line.shop.info";
        test.server.deliver(sids[0], subject, "_INBOX.1", b"{}");
        let taken = test.next_input().await;
        assert!(matches!(taken, Input::Request { delivery, .. } if delivery.via == Via::Plain));
        listening
            .standing
            .send_replace(Standing::Refused(Refusal::of_disk("another disk".into())));
        assert_eq!(test.server.next_unsubscribed(PLAIN.len()).await, sids);
    }
    listening.standing.send_replace(Standing::InTouch);
    for _ in PLAIN {
        assert!(matches!(test.server.next().await, Sent::Subscribe { .. }));
    }
    drop(listening.stop);
    let unsubscribed = test.server.next_unsubscribed(PLAIN.len()).await;
    assert_eq!(unsubscribed.len(), PLAIN.len());
    assert!(listening.plain_closed.await.is_err(), "dropped");
}

#[tokio::test]
async fn a_message_was_routed_after_the_probe_after_which_its_subscription_was_empty() {
    let mut server = TestServer::start().await;
    let client = server.client.clone();
    let from = client.subscribe("a").await.unwrap();
    let mut other = client.subscribe("b").await.unwrap();
    let [
        Sent::Subscribe { sid: a, .. },
        Sent::Subscribe { sid: b, .. },
    ] = [server.next().await, server.next().await]
    else {
        panic!("not two subscriptions");
    };
    let (probed, echoes) = watch::channel(0);
    let mut messages = Messages {
        from,
        probed: echoes,
        reader: Reader::new(Via::Plain, 10),
        forward_only: Arc::default(),
    };
    // async-nats keeps the order of the wire: once the other subscription has its message, so has this.
    let mut arrives = async || {
        server.deliver(a, "a", "r", b"");
        server.deliver(b, "b", "r", b"");
        other.next().await.unwrap();
    };
    let stamp = |next: Option<(Message, (Via, Micros))>| next.unwrap().1.1;

    arrives().await;
    probed.send_replace(20);
    assert_eq!(
        stamp(messages.next().await),
        10,
        "perhaps older than the probe"
    );
    assert!(poll!(std::pin::pin!(messages.next())).is_pending());
    arrives().await;
    assert_eq!(
        stamp(messages.next().await),
        20,
        "it was empty after the echo"
    );
    {
        let mut next = std::pin::pin!(messages.next());
        assert!(poll!(&mut next).is_pending());
        probed.send_replace(30);
        assert!(poll!(&mut next).is_pending());
        arrives().await;
        let Poll::Ready(next) = poll!(&mut next) else {
            panic!("it has arrived");
        };
        assert_eq!(stamp(next), 30, "it was empty when the echo came");
    }
    assert!(poll!(std::pin::pin!(messages.next())).is_pending());
    arrives().await;
    probed.send_replace(40);
    assert_eq!(
        stamp(messages.next().await),
        30,
        "it lay there when the echo came"
    );
    drop(probed);
    arrives().await;
    assert!(messages.next().await.is_some(), "also while the node ends");
}
