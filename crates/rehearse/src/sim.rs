//! Virtual time: one ordered list of what happens next, and nothing else moves.

use crate::config::{Config, Polls};
use crate::crowd::{Nature, gather};
use crate::queue::{Answer, Ask, Happened, Queue};
use crate::report::{Row, SAMPLE_EVERY_MS};
use crate::shopper::{Act, Shopper, Timer};
use crate::tally::Tally;
use crate::timeline::Timeline;
use crate::{Progress, Run};

/// Progress is told after so many events.
const PROGRESS_EVERY: u64 = 65_536;

#[derive(Debug, Clone, Copy)]
enum What {
    /// A shopper comes.
    Arrive,
    /// Its message gets to the server.
    Ask(Ask),
    /// The answer gets to it; `None`: turned away.
    Hear(Option<Answer>),
    /// The event of its admission gets to it.
    Pushed,
    /// What it set itself; void unless it is still its newest of that kind.
    Timer(Timer, u32),
    /// The server's own work.
    Upkeep,
    /// The sale begins.
    Open,
    /// A row of the table.
    Sample,
}

struct Sim<'a, Q> {
    config: &'a Config,
    queue: Q,
    now_ms: u64,
    timeline: Timeline<(u32, What)>,
    shoppers: Vec<Shopper>,
    /// Shoppers that have come and not gone home.
    present: u64,
    gone_home: u64,
    tally: Tally,
    rows: Vec<Row>,
    /// The next [`What::Upkeep`] that counts.
    next_upkeep_ms: u64,
}

/// Runs the crowd against a queue.
pub(crate) fn run<Q: Queue>(config: &Config, queue: Q, progress: &mut dyn FnMut(Progress)) -> Run {
    let crowd = gather(config);
    let mut sim = Sim {
        config,
        queue,
        now_ms: 0,
        timeline: Timeline::new(),
        shoppers: Vec::with_capacity(crowd.len()),
        present: 0,
        gone_home: 0,
        tally: Tally::new(config),
        rows: Vec::new(),
        next_upkeep_ms: 0,
    };
    sim.begin(crowd);
    let mut steps = 0u64;
    while let Some((at_ms, (who, what))) = sim.timeline.next()
        && at_ms <= config.until_ms
        && !sim.over()
    {
        sim.tally.advance(at_ms);
        sim.now_ms = at_ms;
        sim.step(who, what);
        steps += 1;
        if steps.is_multiple_of(PROGRESS_EVERY) {
            progress(Progress {
                virtual_ms: sim.now_ms,
                gone_home: sim.gone_home,
                shoppers: sim.shoppers.len() as u64,
            });
        }
    }
    sim.sample();
    sim.tally.finish(sim.rows, &config.settings.lanes)
}

impl<Q: Queue> Sim<'_, Q> {
    fn begin(&mut self, crowd: Vec<Nature>) {
        let give_up_percent = self.config.crowd.give_up_percent;
        for (who, nature) in (0..).zip(crowd) {
            self.plan(nature.arrives_ms, who, What::Arrive);
            self.shoppers.push(Shopper::new(nature, give_up_percent));
        }
        self.plan(0, 0, What::Upkeep);
        self.plan(0, 0, What::Sample);
        if let Some(open_at_ms) = self.config.open_at_ms {
            self.plan(open_at_ms, 0, What::Open);
        }
    }

    /// Everybody went home, and the line has noticed.
    fn over(&self) -> bool {
        self.gone_home == self.shoppers.len() as u64 && self.tally.books.live() == 0
    }

    fn plan(&mut self, at_ms: u64, who: u32, what: What) {
        self.timeline.plan(at_ms, (who, what));
    }

    fn step(&mut self, who: u32, what: What) {
        match what {
            What::Arrive => {
                self.present += 1;
                let lane = self.shopper(who).nature.lane;
                self.send(who, Ask::Enter { lane });
            }
            What::Ask(ask) => self.serve(who, ask),
            What::Hear(answer) => {
                let act = self.shopper(who).hear(answer);
                self.act(who, act);
            }
            What::Pushed => {
                let act = self.shopper(who).pushed();
                self.act(who, act);
            }
            What::Timer(timer, serial) => {
                let act = self.shopper(who).timer(timer, serial);
                self.act(who, act);
            }
            What::Upkeep => {
                // Another one was planned for earlier meanwhile.
                if self.now_ms == self.next_upkeep_ms {
                    self.queue.upkeep(self.now_ms);
                    self.spread();
                    self.next_upkeep_ms = u64::MAX;
                    self.plan_upkeep();
                }
            }
            What::Open => {
                self.queue.open(self.now_ms);
                self.spread();
                self.plan_upkeep();
            }
            What::Sample => {
                self.sample();
                self.plan(self.now_ms + SAMPLE_EVERY_MS, 0, What::Sample);
            }
        }
    }

    fn watches(&self, who: u32) -> bool {
        self.shoppers[who as usize].nature.watches
    }

    fn shopper(&mut self, who: u32) -> &mut Shopper {
        &mut self.shoppers[who as usize]
    }

    fn send(&mut self, who: u32, ask: Ask) {
        let at_ms = self.now_ms + self.config.net_delay_ms;
        self.plan(at_ms, who, What::Ask(ask));
    }

    fn serve(&mut self, who: u32, ask: Ask) {
        let answer = self.queue.ask(self.now_ms, who, ask);
        self.plan_upkeep();
        match (ask, answer) {
            (Ask::Enter { lane }, Some(answer)) => {
                self.tally.entered(who, lane, &answer, self.now_ms);
            }
            (Ask::Enter { .. }, None) => self.tally.turned_away(),
            (Ask::Poll(_), _) => self.tally.polled(self.now_ms),
            _ => {}
        }
        self.spread();
        if let Some(answer) = answer {
            self.tally.books.answered(ask, &answer);
        }
        let at_ms = self.now_ms + self.config.net_delay_ms;
        self.plan(at_ms, who, What::Hear(answer));
    }

    /// What happened gets into the books, and to those who watch.
    fn spread(&mut self) {
        for happened in self.queue.happened() {
            match happened {
                Happened::Admitted(place) => {
                    let who = self.tally.admitted(place, self.now_ms, &self.queue);
                    if let Some(who) = who.filter(|who| self.watches(*who)) {
                        let at_ms = self.pushed_ms();
                        self.plan(at_ms, who, What::Pushed);
                    }
                }
                Happened::Gone { place, reason } => self.tally.gone(place, reason, self.now_ms),
            }
        }
        self.tally.books.check();
    }

    /// When a watcher sees what happens now: token events go out at once, boards at most twenty a
    /// second.
    fn pushed_ms(&self) -> u64 {
        const BOARD_EVERY_MS: u64 = 50;
        let out_ms = if self.config.settings.token_events {
            self.now_ms
        } else {
            self.now_ms.next_multiple_of(BOARD_EVERY_MS)
        };
        out_ms + self.config.net_delay_ms
    }

    fn act(&mut self, who: u32, act: Act) {
        let now_ms = self.now_ms;
        match act {
            Act::Nothing => {}
            Act::Send(ask) => self.send(who, ask),
            Act::Wait {
                told_ms,
                patience_ms,
            } => {
                if let Some(patience_ms) = patience_ms {
                    self.set_timer(who, now_ms + patience_ms, Timer::Patience);
                }
                let pause_ms = self.pause_ms(who, told_ms);
                self.set_timer(who, now_ms + pause_ms, Timer::Poll);
            }
            Act::Shop { for_ms } => {
                self.set_timer(who, now_ms + for_ms, Timer::Done);
                self.plan_renewal(who);
            }
            Act::Renew(ask) => {
                self.send(who, ask);
                self.plan_renewal(who);
            }
            Act::GoHome(last) => {
                if let Some(ask) = last {
                    self.send(who, ask);
                }
                self.present -= 1;
                self.gone_home += 1;
            }
        }
    }

    fn plan_renewal(&mut self, who: u32) {
        let every_ms = (self.config.settings.checkout_timeout_ms / 2).max(1);
        self.set_timer(who, self.now_ms + every_ms, Timer::Renew);
    }

    fn plan_upkeep(&mut self) {
        let next_ms = self.queue.next_upkeep_ms().max(self.now_ms + 1);
        if next_ms < self.next_upkeep_ms {
            self.next_upkeep_ms = next_ms;
            self.plan(next_ms, 0, What::Upkeep);
        }
    }

    fn set_timer(&mut self, who: u32, at_ms: u64, timer: Timer) {
        let serial = self.shopper(who).set(timer);
        self.plan(at_ms, who, What::Timer(timer, serial));
    }

    /// How long until it asks again. Who watches asks as told, to be heard from; so does the rest
    /// of a crowd that does as it is told, of a queue that tells.
    fn pause_ms(&mut self, who: u32, told_ms: Option<u64>) -> u64 {
        const UNTOLD_MAX_MS: u64 = 30_000;
        let polls = self.config.crowd.polls;
        let shopper = self.shopper(who);
        let max_ms = match (polls, told_ms) {
            (Polls::Told, Some(told_ms)) => return told_ms,
            (_, Some(told_ms)) if shopper.nature.watches => return told_ms,
            (Polls::Told, None) => UNTOLD_MAX_MS,
            (Polls::Random { max_ms }, _) => max_ms,
        };
        shopper.nature.dice.below(max_ms)
    }

    fn sample(&mut self) {
        let pointers = self.queue.pointers(self.now_ms);
        let eta_ms = self.queue.newcomer_eta_ms(self.now_ms);
        self.rows
            .push(self.tally.row(&pointers, self.present, eta_ms));
    }
}
