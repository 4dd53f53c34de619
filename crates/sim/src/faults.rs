//! What can go wrong, how often it does in a run, and how often it did.

use crate::random::Random;
use crate::timeline::Time;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[$doc])* $name,)*
        }

        impl Fault {
            /// Every kind.
            pub const ALL: &[Fault] = &[$(Fault::$name),*];

            /// Its name in the counts.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Fault::$name => $text,)*
                }
            }
        }
    };
}

kinds! {
    /// A frame between nodes is lost.
    FrameLost = "frame_lost",
    /// A frame comes twice.
    FrameDoubled = "frame_doubled",
    /// A frame comes late, and everything behind it.
    FrameDelayed = "frame_delayed",
    /// A frame comes late, and what was sent after it comes before it.
    FrameReordered = "frame_reordered",
    /// One node is cut off from the others.
    Partition = "partition",
    /// One node is not heard by another one, but hears it.
    PartitionOneWay = "partition_one_way",
    /// Two nodes do not hear each other, and both hear the third.
    PartitionNonTransitive = "partition_non_transitive",
    /// Frames over NATS do not come through between some nodes, and those by direct links do.
    NatsLinksCut = "nats_links_cut",
    /// Direct links carry nothing, and frames over NATS come through.
    DirectCut = "direct_cut",
    /// The connection of a direct link is lost, with what is under way.
    DirectLost = "direct_lost",
    /// A frame by a direct link comes late, and everything behind it.
    DirectStall = "direct_stall",
    /// The opener of a direct link gives it up as it makes no progress.
    DirectSilent = "direct_silent",
    /// A frame goes by a direct link.
    SentDirectly = "sent_directly",
    /// All links between nodes are slow for a while.
    LinksSlow = "links_slow",
    /// The NATS server restarts: every connection is lost, with all that is in its buffers.
    NatsRestart = "nats_restart",
    /// A node's service connection is lost; its peers' is not.
    ServiceCut = "service_cut",
    /// The same, and the node notices it later than the server.
    ServiceHalfOpen = "service_half_open",
    /// The proof that a peer's service connection is closed comes late.
    ProofLate = "proof_late",
    /// A server has lost its route to another one.
    RouteLost = "route_lost",
    /// A node's service connection stands still, both ways, then goes on.
    ServiceStall = "service_stall",
    /// A loop of a node stands still, and the others go on.
    LoopStall = "loop_stall",
    /// A node is started with another number of loops.
    LoopsChange = "loops_change",
    /// What a loop tells another one is lost, as that has too much to read.
    LoopWordLost = "loop_word_lost",
    /// The server drops the connection of a node that reads too slowly.
    SlowConsumer = "slow_consumer",
    /// A subscription, or the end of one, takes effect late.
    SubscriptionLate = "subscription_late",
    /// A client's request does not reach the server.
    RequestLost = "request_lost",
    /// An answer does not reach its client.
    ReplyLost = "reply_lost",
    /// A client's messages take long.
    ClientSlow = "client_slow",
    /// A client publishes one message twice.
    RequestDoubled = "request_doubled",
    /// The server delivers one message twice to a node.
    DeliveryDoubled = "delivery_doubled",
    /// The server begins or ceases to map plain requests to their shards.
    MappingChanges = "mapping_changes",
    /// The server is reloaded, and takes more or less in one message.
    MaxPayloadChanges = "max_payload_changes",
    /// A frame is larger than the server takes by now: it closes the connection.
    FrameTooLarge = "frame_too_large",
    /// A frame travels in parts.
    FrameInParts = "frame_in_parts",
    /// A node's inbox is full most of the time, for a while.
    InboxFull = "inbox_full",
    /// A node turns a request away unread, as its inbox is full.
    RequestTurnedAway = "request_turned_away",
    /// A write is not synced when its machine loses power, and is lost.
    UnsyncedLost = "unsynced_lost",
    /// Of a write that is not synced when the power goes, a part is there afterwards.
    TornTail = "torn_tail",
    /// A bit of a snapshot has flipped.
    BitFlip = "bit_flip",
    /// A bit of an entry in the log has flipped.
    LogBitFlip = "log_bit_flip",
    /// The log's oldest files are kept alive by a few shards.
    FilesPinned = "files_pinned",
    /// A write fails, or its sync.
    SyncFailed = "sync_failed",
    /// Syncs are slow for a while.
    SyncSlow = "sync_slow",
    /// A sync takes 300 ms or more.
    SyncTakes300Ms = "sync_takes_300_ms",
    /// The disk of a node, or of all nodes, is full for a while.
    DiskFull = "disk_full",
    /// A write waits for room on a full disk.
    WriteWaits = "write_waits",
    /// A disk is wiped.
    DiskWiped = "disk_wiped",
    /// An older copy of a disk is put back.
    DiskRolledBack = "disk_rolled_back",
    /// A node's file with the disks of its peers is put back from an older copy.
    PeersRolledBack = "peers_rolled_back",
    /// A snapshot cannot be written.
    SnapshotFailed = "snapshot_failed",
    /// The power of a machine goes.
    Crash = "crash",
    /// A node is stopped in order, and started again.
    Stop = "stop",
    /// A node is started (again).
    Start = "start",
    /// A process stands still, and goes on.
    Pause = "pause",
    /// The same, in the middle of a turn: what the turn came to goes out after it.
    PauseMidTurn = "pause_mid_turn",
    /// A machine's clock runs at another speed.
    ClockDrift = "clock_drift",
    /// A machine's wall clock jumps, and is set right later.
    ClockJump = "clock_jump",
    /// A client's clock jumps, and is set right later.
    ClientClockJump = "client_clock_jump",
    /// The ways of a few clients to the server stand still for a while.
    ClientStall = "client_stall",
    /// A client repeats a request.
    ClientRetry = "client_retry",
    /// A client gives a call up without an answer.
    ClientGivesUp = "client_gives_up",
    /// A client goes away without a word.
    ClientVanishes = "client_vanishes",
    /// A client leaves its line without waiting for the answer.
    LeaveUnanswered = "leave_unanswered",
    /// A holder names an earlier epoch than that of its claim.
    EpochStale = "epoch_stale",
    /// An operator changes a line's settings.
    OperatorConfigures = "operator_configures",
    /// An operator changes the settings of all lines with a label.
    OperatorConfiguresMany = "operator_configures_many",
    /// An operator deletes a line, and makes it again.
    OperatorDeletes = "operator_deletes",
    /// An operator moves somebody to another lane.
    OperatorMoves = "operator_moves",
    /// An operator names an incarnation that is deleted.
    IncarnationStale = "incarnation_stale",
    /// An operator looks at the cluster.
    OperatorLooks = "operator_looks",
    /// A node is started with the next build, or with this one again.
    BuildChanges = "build_changes",
    /// The operator of the cluster adds a node.
    OperatorAddsNode = "operator_adds_node",
    /// The operator removes a node.
    OperatorRemovesNode = "operator_removes_node",
    /// The operator replaces a node by another machine.
    OperatorReplacesNode = "operator_replaces_node",
    /// The operator drains a node, or ends that.
    OperatorDrains = "operator_drains",
    /// The operator says which node shall lead shards.
    OperatorTransfers = "operator_transfers",
    /// An operator makes a backup, and puts a line back from it.
    OperatorRestores = "operator_restores",
    /// A line was put back.
    LineRestored = "line_restored",
    /// An operator kicks tokens.
    OperatorKicks = "operator_kicks",
    /// An operator sets a schedule.
    OperatorSchedules = "operator_schedules",
    /// A shopper jumps into another lane.
    ShopperJumps = "shopper_jumps",
    /// An operator says whether tokens of a line are called, calls the next ones, or takes one out of order.
    OperatorCalls = "operator_calls",
    /// A backend tells its capacity, or takes that back.
    BackendTells = "backend_tells",
    /// A shopper who is refused asks to be told of room.
    ShopperCallsBack = "shopper_calls_back",
    /// An operator imports rows of a queue that runs elsewhere, some of them again.
    OperatorImports = "operator_imports",
}

/// How often each kind of fault occurred.
#[derive(Clone, Debug)]
pub struct Counts(Vec<u64>);

impl Default for Counts {
    fn default() -> Self {
        Counts(vec![0; Fault::ALL.len()])
    }
}

impl Counts {
    /// One more of a kind.
    pub fn add(&mut self, kind: Fault) {
        if let Some(count) = self.0.get_mut(kind as usize) {
            *count += 1;
        }
    }

    /// Those of another run.
    pub fn add_all(&mut self, other: &Counts) {
        for (sum, count) in self.0.iter_mut().zip(&other.0) {
            *sum += count;
        }
    }

    /// Each kind and how often.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Fault::ALL
            .iter()
            .map(|kind| kind.as_str())
            .zip(self.0.iter().copied())
    }
}

/// How often each kind of fault occurs in a run: the seed's weather.
#[derive(Clone, Debug)]
pub struct Weather {
    /// For faults that befall messages and the like: millionths.
    chances: Vec<u32>,
    /// For faults that begin at some time: the mean time between two; `None`: never.
    intervals: Vec<Option<Time>>,
}

/// What the network and the disks are like in a run when nothing is wrong.
#[derive(Clone, Copy, Debug)]
pub struct Calm {
    /// One way between two nodes.
    pub link_us: Time,
    /// One way between a client or node and the NATS server.
    pub nats_us: Time,
    /// A sync.
    pub sync_us: Time,
}

impl Weather {
    /// Draws it. Each kind is absent from every other run, so that faults meet in many combinations
    /// and none hides all others.
    pub fn draw(random: &mut Random) -> Weather {
        let calm = random.below(12) == 0;
        let mut chances = Vec::new();
        let mut intervals = Vec::new();
        for kind in Fault::ALL {
            let present = !calm && random.below(2) == 0;
            chances.push(if present { chance(*kind, random) } else { 0 });
            let interval = interval(*kind, random);
            intervals.push(interval.filter(|_| present));
        }
        Weather { chances, intervals }
    }

    /// Faults of this kind are there, and many.
    pub fn worsen(&mut self, kind: Fault, random: &mut Random) {
        if let Some(chance_now) = self.chances.get_mut(kind as usize) {
            *chance_now = (0..8).map(|_| chance(kind, random)).max().unwrap_or(0);
        }
        if let Some(interval_now) = self.intervals.get_mut(kind as usize) {
            *interval_now = (0..8).filter_map(|_| interval(kind, random)).min();
        }
    }

    /// Nothing goes wrong.
    #[must_use]
    pub fn fine() -> Weather {
        Weather {
            chances: vec![0; Fault::ALL.len()],
            intervals: vec![None; Fault::ALL.len()],
        }
    }

    /// How often a fault befalls a message and the like, in millionths.
    #[must_use]
    pub fn chance(&self, kind: Fault) -> u32 {
        self.chances.get(kind as usize).copied().unwrap_or(0)
    }

    /// The mean time between two; `None`: never.
    #[must_use]
    pub fn interval(&self, kind: Fault) -> Option<Time> {
        self.intervals.get(kind as usize).copied().flatten()
    }
}

/// Few of a hundred, or, in one run of four, many.
fn percent(random: &mut Random, few: u64, many: u64) -> u32 {
    let most = if random.below(4) == 0 { many } else { few };
    random.between(1, most * 10_000) as u32
}

fn chance(kind: Fault, random: &mut Random) -> u32 {
    match kind {
        Fault::FrameLost => percent(random, 3, 30),
        Fault::FrameDoubled => percent(random, 5, 50),
        Fault::FrameDelayed | Fault::FrameReordered => percent(random, 3, 20),
        Fault::DirectStall => percent(random, 3, 20),
        Fault::DirectLost => random.between(100, 20_000) as u32,
        Fault::LoopsChange => 300_000,
        Fault::LoopWordLost => percent(random, 1, 10),
        Fault::SubscriptionLate | Fault::ProofLate => percent(random, 20, 100),
        Fault::RequestLost | Fault::ReplyLost => percent(random, 1, 10),
        Fault::RouteLost => percent(random, 2, 10),
        Fault::SlowConsumer => percent(random, 10, 50),
        Fault::ClientSlow => percent(random, 2, 10),
        // Of crashes.
        Fault::UnsyncedLost | Fault::TornTail => 700_000,
        Fault::BitFlip => 500_000,
        Fault::LogBitFlip => 250_000,
        Fault::RequestDoubled | Fault::DeliveryDoubled => percent(random, 3, 20),
        Fault::LeaveUnanswered => percent(random, 30, 100),
        Fault::EpochStale => percent(random, 5, 20),
        Fault::IncarnationStale => random.between(100_000, 700_000) as u32,
        Fault::SyncFailed => random.between(50, 1_000) as u32,
        Fault::SnapshotFailed => percent(random, 10, 50),
        Fault::PauseMidTurn => random.between(10, 400) as u32,
        Fault::ClientVanishes => percent(random, 3, 15),
        Fault::ShopperJumps => percent(random, 5, 30),
        Fault::ShopperCallsBack => percent(random, 50, 100),
        _ => 0,
    }
}

/// Several in a run for most, one in some runs for the grave ones.
fn interval(kind: Fault, random: &mut Random) -> Option<Time> {
    let (least_ms, most_ms) = match kind {
        Fault::Partition | Fault::PartitionOneWay | Fault::PartitionNonTransitive => {
            (2_000, 15_000)
        }
        Fault::NatsLinksCut | Fault::DirectCut => (2_000, 10_000),
        Fault::LinksSlow | Fault::SyncSlow => (4_000, 20_000),
        Fault::LoopStall => (1_000, 10_000),
        Fault::NatsRestart => (6_000, 25_000),
        Fault::ServiceHalfOpen => (2_000, 10_000),
        Fault::ServiceCut | Fault::ServiceStall => (2_000, 15_000),
        Fault::Crash => (2_000, 20_000),
        Fault::Stop => (6_000, 25_000),
        Fault::Pause => (2_000, 12_000),
        Fault::ClockJump => (3_000, 15_000),
        Fault::ClientClockJump => (300, 3_000),
        Fault::ClientStall => (500, 5_000),
        Fault::OperatorConfigures => (500, 4_000),
        Fault::OperatorConfiguresMany => (1_000, 6_000),
        Fault::OperatorDeletes => (4_000, 20_000),
        Fault::OperatorMoves => (1_000, 8_000),
        Fault::OperatorCalls => (200, 2_000),
        Fault::OperatorImports => (300, 3_000),
        Fault::BackendTells => (200, 2_000),
        Fault::OperatorKicks => (1_000, 8_000),
        Fault::OperatorSchedules => (1_500, 8_000),
        Fault::OperatorLooks => (500, 4_000),
        Fault::OperatorAddsNode | Fault::OperatorReplacesNode => (3_000, 10_000),
        Fault::OperatorRemovesNode => (4_000, 12_000),
        Fault::OperatorDrains | Fault::OperatorTransfers => (3_000, 12_000),
        Fault::OperatorRestores => (2_000, 8_000),
        Fault::LogBitFlip => (10_000, 60_000),
        Fault::FilesPinned => (1_000, 6_000),
        Fault::MappingChanges => (4_000, 15_000),
        Fault::MaxPayloadChanges => (1_000, 6_000),
        Fault::InboxFull => (3_000, 12_000),
        Fault::DiskFull => (4_000, 20_000),
        Fault::BuildChanges => (2_000, 8_000),
        Fault::DiskWiped | Fault::DiskRolledBack => (4_000, 25_000),
        Fault::PeersRolledBack => (1_000, 6_000),
        _ => return None,
    };
    Some(random.between(least_ms, most_ms) * 1_000)
}

impl Calm {
    /// Draws it.
    pub fn draw(random: &mut Random) -> Calm {
        Calm {
            link_us: random.around(2_000),
            nats_us: random.around(1_000),
            sync_us: random.around(2_000),
        }
    }
}
