//! Virtual time: one ordered list of events. Time moves on from each to the next.

use nowserving_adapt::{LineNow, Outcome};

use crate::config::{Config, Polls};
use crate::crowd::{Nature, gather};
use crate::dispatcher::{Dispatcher, Planned};
use crate::follow::{Follow, LOOK_EVERY_MS};
use crate::queue::{Answer, Ask, Happened, Queue};
use crate::report::{Row, SAMPLE_EVERY_MS};
use crate::shopper::{Act, Shopper, Timer};
use crate::slowed::Slowed;
use crate::tally::{Helpers, Tally};
use crate::timeline::Timeline;
use crate::transactions::Transactions;
use crate::{Progress, Run};

/// Progress is reported after so many events.
const PROGRESS_EVERY: u64 = 65_536;

#[derive(Debug, Clone, Copy)]
enum Event {
    Arrive,
    /// Its message gets to the server.
    Ask(Ask),
    /// The answer gets to it; `None`: turned away.
    Answer(Option<Answer>),
    /// The event of its admission gets to it.
    Pushed,
    /// A timer that it has set; void unless it is still the newest of its kind.
    Timer(Timer, u32),
    /// The server's own work.
    Upkeep,
    /// The line's phase becomes `open`.
    Open,
    /// A dispatcher's call gets to the server.
    Call {
        n: u32,
    },
    /// The slowed service has done some checkouts; void unless it is the newest of these.
    Served,
    /// The backend looks at its service.
    Look,
    /// Its word of the seats gets to the server.
    SeatsTold(u32),
    /// A row of the table.
    Sample,
}

struct Sim<'a, Q> {
    config: &'a Config,
    queue: Q,
    now_ms: u64,
    timeline: Timeline<(u32, Event)>,
    shoppers: Vec<Shopper>,
    transactions: Option<Transactions>,
    dispatcher: Option<Dispatcher>,
    slowed: Option<Slowed>,
    /// The next [`Event::Served`] that counts.
    next_served_ms: Option<u64>,
    follow: Option<Follow>,
    /// Shoppers that have come and not gone home.
    present: u64,
    gone_home: u64,
    tally: Tally,
    rows: Vec<Row>,
    /// The next [`Event::Upkeep`] that counts.
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
        transactions: config.transaction_rate.map(Transactions::new),
        dispatcher: dispatcher(config),
        slowed: config.slowdown.map(Slowed::new),
        next_served_ms: None,
        follow: config.auto_seats.map(Follow::new),
        present: 0,
        gone_home: 0,
        tally: Tally::new(config),
        rows: Vec::new(),
        next_upkeep_ms: 0,
    };
    sim.begin(crowd);
    let mut steps = 0u64;
    while let Some((at_ms, (shopper, event))) = sim.timeline.next()
        && at_ms <= config.until_ms
        && !sim.over()
    {
        sim.tally.advance(at_ms);
        sim.now_ms = at_ms;
        sim.step(shopper, event);
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
    let Sim {
        tally,
        rows,
        transactions,
        dispatcher,
        slowed,
        follow,
        ..
    } = sim;
    let helpers = Helpers {
        transactions,
        dispatcher,
        slowed,
        follow,
    };
    tally.finish(rows, &config.settings.lanes, helpers)
}

fn dispatcher(config: &Config) -> Option<Dispatcher> {
    let calls = config.calls?;
    Some(Dispatcher::new(calls, config.net_delay_ms))
}

impl<Q: Queue> Sim<'_, Q> {
    fn begin(&mut self, crowd: Vec<Nature>) {
        let give_up_percent = self.config.crowd.give_up_percent;
        for (shopper, nature) in (0..).zip(crowd) {
            self.plan(nature.arrives_ms, shopper, Event::Arrive);
            self.shoppers.push(Shopper::new(nature, give_up_percent));
        }
        self.plan(0, 0, Event::Upkeep);
        self.plan(0, 0, Event::Sample);
        if self.follow.is_some() {
            self.plan(0, 0, Event::Look);
        }
        if let Some(open_at_ms) = self.config.open_at_ms {
            self.plan(open_at_ms, 0, Event::Open);
        }
    }

    /// Everybody went home, and the line has noticed.
    fn over(&self) -> bool {
        self.gone_home == self.shoppers.len() as u64 && self.tally.books.live() == 0
    }

    fn plan(&mut self, at_ms: u64, shopper: u32, event: Event) {
        self.timeline.plan(at_ms, (shopper, event));
    }

    fn step(&mut self, shopper: u32, event: Event) {
        match event {
            Event::Arrive => {
                self.present += 1;
                let lane = self.shopper(shopper).nature.lane;
                self.send(shopper, Ask::Enter { lane });
            }
            Event::Ask(ask) => self.serve(shopper, ask),
            Event::Answer(answer) => self.react(shopper, |it| it.answered(answer)),
            Event::Pushed => self.react(shopper, Shopper::pushed),
            Event::Timer(timer, serial) => self.react(shopper, |it| it.timer(timer, serial)),
            Event::Upkeep => {
                // Another one was planned for earlier meanwhile.
                if self.now_ms == self.next_upkeep_ms {
                    self.queue.upkeep(self.now_ms);
                    self.spread();
                    self.next_upkeep_ms = u64::MAX;
                    self.plan_upkeep();
                }
            }
            Event::Open => {
                self.tally.open();
                self.queue.open(self.now_ms);
                self.spread();
                self.plan_upkeep();
            }
            Event::Call { n } => self.call(n),
            Event::Served => self.served(),
            Event::Look => {
                self.look_at_service();
                self.plan(self.now_ms + LOOK_EVERY_MS, 0, Event::Look);
            }
            Event::SeatsTold(seats) => {
                self.queue.seats_told(self.now_ms, seats);
                if let Some(follow) = &mut self.follow {
                    follow.arrived();
                }
                self.spread();
                self.plan_upkeep();
            }
            Event::Sample => {
                self.sample();
                self.plan(self.now_ms + SAMPLE_EVERY_MS, 0, Event::Sample);
            }
        }
    }

    fn watches(&self, shopper: u32) -> bool {
        self.shoppers[shopper as usize].nature.watches
    }

    fn shopper(&mut self, shopper: u32) -> &mut Shopper {
        &mut self.shoppers[shopper as usize]
    }

    fn send(&mut self, shopper: u32, ask: Ask) {
        let at_ms = self.now_ms + self.config.net_delay_ms;
        self.plan(at_ms, shopper, Event::Ask(ask));
    }

    fn serve(&mut self, shopper: u32, ask: Ask) {
        let answer = self.queue.ask(self.now_ms, shopper, ask);
        self.plan_upkeep();
        match (ask, answer) {
            (Ask::Enter { lane }, Ok(answer)) => {
                self.tally.entered(shopper, lane, &answer, self.now_ms);
            }
            (Ask::Enter { .. }, Err(code)) => self.tally.turned_away(code),
            (Ask::Poll(_), _) => self.tally.polled(self.now_ms),
            _ => {}
        }
        self.spread();
        let answer = answer.ok();
        if let Some(answer) = answer {
            self.tally.books.answered(ask, &answer);
            self.tally.told(shopper, &answer, self.now_ms);
        }
        let at_ms = self.now_ms + self.config.net_delay_ms;
        self.plan(at_ms, shopper, Event::Answer(answer));
    }

    fn call(&mut self, n: u32) {
        let wanted = self.tally.wanted();
        self.queue.call(self.now_ms, n);
        self.tally.begin_call(n);
        self.tell();
        let admitted = self.tally.end_call();
        let dispatcher = self.dispatcher.as_mut();
        let next = dispatcher.and_then(|it| it.called(self.now_ms, admitted, wanted));
        self.plan_calls(next);
        self.look();
        self.plan_upkeep();
    }

    /// The dispatcher sees the board.
    fn look(&mut self) {
        let (now_ms, wanted) = (self.now_ms, self.tally.wanted());
        let dispatcher = self.dispatcher.as_mut();
        let planned = dispatcher.and_then(|it| it.look(now_ms, wanted));
        self.plan_calls(planned);
    }

    fn plan_calls(&mut self, planned: Option<Planned>) {
        if let Some(Planned { count, n, at_ms }) = planned {
            for _ in 0..count {
                self.plan(at_ms, 0, Event::Call { n });
            }
        }
    }

    /// All that the queue has done is passed on.
    fn spread(&mut self) {
        self.tell();
        self.look();
    }

    /// Passes the events of the queue to the books and to watching shoppers.
    fn tell(&mut self) {
        for happened in self.queue.happened() {
            match happened {
                Happened::Configured {
                    seats,
                    admits,
                    called,
                } => self.tally.configured(seats, admits, called),
                Happened::Seats(seats) => self.tally.seats_told(seats),
                Happened::ScheduleFailed(change) => self.tally.schedule_failed(change),
                Happened::DrawBegun => self.tally.books.begin_draw(self.now_ms),
                Happened::Drawn { from, to } => self.tally.drawn(from, to),
                Happened::Admitted(place) => {
                    let shopper = self.tally.admitted(place, self.now_ms, &self.queue);
                    if let Some(shopper) = shopper.filter(|shopper| self.watches(*shopper)) {
                        let at_ms = self.pushed_ms();
                        self.plan(at_ms, shopper, Event::Pushed);
                    }
                }
                Happened::Gone {
                    place,
                    reason,
                    units,
                } => self.tally.gone(place, reason, units, self.now_ms),
            }
        }
        self.tally.books.check();
    }

    /// The time at which a watcher sees an event of now: token events go out at once, boards at most twenty a
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

    /// Lets a shopper react to an event.
    fn react(&mut self, shopper: u32, decide: impl FnOnce(&mut Shopper) -> Act) {
        let now_ms = self.now_ms;
        match decide(self.shopper(shopper)) {
            Act::Nothing => {}
            Act::Send(ask) => self.send(shopper, ask),
            Act::Wait {
                poll_after_ms,
                patience_ms,
            } => {
                if let Some(patience_ms) = patience_ms {
                    self.set_timer(shopper, now_ms + patience_ms, Timer::Patience);
                }
                let pause_ms = self.pause_ms(shopper, poll_after_ms);
                self.set_timer(shopper, now_ms + pause_ms, Timer::Poll);
            }
            Act::Shop { for_ms } => {
                self.shop(shopper, for_ms);
                self.plan_renewal(shopper);
            }
            Act::Pay => self.pay(shopper),
            Act::Renew(ask) => {
                self.send(shopper, ask);
                self.plan_renewal(shopper);
            }
            Act::GoHome(last) => {
                if let Some(ask) = last {
                    self.send(shopper, ask);
                }
                self.present -= 1;
                self.gone_home += 1;
            }
        }
    }

    /// A checkout begins, which takes so long at full speed.
    fn shop(&mut self, shopper: u32, work_ms: u64) {
        let now_ms = self.now_ms;
        let Some(slowed) = &mut self.slowed else {
            self.set_timer(shopper, now_ms + work_ms, Timer::Done);
            return;
        };
        slowed.begin(now_ms, shopper, work_ms);
        if let Some(follow) = &mut self.follow {
            follow.begin(now_ms, shopper, self.tally.had_to_wait(shopper));
        }
        self.plan_served();
    }

    /// The slowed service has done some.
    fn served(&mut self) {
        let now_ms = self.now_ms;
        if self.next_served_ms != Some(now_ms) {
            // Another one was planned meanwhile.
            return;
        }
        self.next_served_ms = None;
        let done = self.slowed.as_mut().map(|slowed| slowed.done(now_ms));
        for shopper in done.into_iter().flatten() {
            let outcome = match self.shopper(shopper).nature.abandons {
                true => Outcome::BrokenOff,
                false => Outcome::Done,
            };
            if let Some(follow) = &mut self.follow {
                follow.end(now_ms, shopper, outcome);
            }
            self.set_timer(shopper, now_ms, Timer::Done);
        }
        self.plan_served();
    }

    /// How fast checkouts get on has changed.
    fn plan_served(&mut self) {
        let next_ms = self.slowed.as_ref().and_then(Slowed::next_ms);
        if let Some(at_ms) = next_ms
            && self.next_served_ms != next_ms
        {
            self.plan(at_ms, 0, Event::Served);
        }
        self.next_served_ms = next_ms;
    }

    fn look_at_service(&mut self) {
        let now_ms = self.now_ms;
        let load = self.slowed.as_mut().and_then(|slowed| slowed.load(now_ms));
        let books = &self.tally.books;
        let line = LineNow {
            seats: books.seats().try_into().unwrap_or(u32::MAX),
            held: books.held(),
        };
        let follow = self.follow.as_mut();
        if let Some(seats) = follow.and_then(|it| it.look(now_ms, load, line)) {
            let at_ms = now_ms + self.config.net_delay_ms;
            self.plan(at_ms, 0, Event::SeatsTold(seats));
        }
    }

    fn pay(&mut self, shopper: u32) {
        let now_ms = self.now_ms;
        let at_ms = self.transactions.as_mut().map(|them| them.ask(now_ms));
        match at_ms.filter(|at_ms| *at_ms > now_ms) {
            Some(at_ms) => self.set_timer(shopper, at_ms, Timer::Done),
            None => self.react(shopper, Shopper::paid),
        }
    }

    fn plan_renewal(&mut self, shopper: u32) {
        let every_ms = (self.config.settings.checkout_timeout_ms / 2).max(1);
        self.set_timer(shopper, self.now_ms + every_ms, Timer::Renew);
    }

    fn plan_upkeep(&mut self) {
        let next_ms = self.queue.next_upkeep_ms().max(self.now_ms + 1);
        if next_ms < self.next_upkeep_ms {
            self.next_upkeep_ms = next_ms;
            self.plan(next_ms, 0, Event::Upkeep);
        }
    }

    fn set_timer(&mut self, shopper: u32, at_ms: u64, timer: Timer) {
        let serial = self.shopper(shopper).set(timer);
        self.plan(at_ms, shopper, Event::Timer(timer, serial));
    }

    /// How long until it asks again. A shopper that watches asks when the answer says, so that its token
    /// lives on; so do the others of [`Polls::AsAnswered`], if the queue says when.
    fn pause_ms(&mut self, shopper: u32, poll_after_ms: Option<u64>) -> u64 {
        const WITHOUT_ANSWER_MAX_MS: u64 = 30_000;
        let polls = self.config.crowd.polls;
        let nature = &mut self.shopper(shopper).nature;
        let max_ms = match (polls, poll_after_ms) {
            (Polls::AsAnswered, Some(ms)) => return ms,
            (_, Some(ms)) if nature.watches => return ms,
            (Polls::AsAnswered, None) => WITHOUT_ANSWER_MAX_MS,
            (Polls::Random { max_ms }, _) => max_ms,
        };
        nature.dice.below(max_ms)
    }

    fn sample(&mut self) {
        let pointers = self.queue.pointers(self.now_ms);
        let eta_ms = self.queue.newcomer_eta_ms(self.now_ms);
        let (now_ms, transactions) = (self.now_ms, self.transactions.as_mut());
        let transacting = transactions.map_or(0, |them| them.queued(now_ms));
        let row = self.tally.row(&pointers, self.present, eta_ms);
        self.rows.push(Row { transacting, ..row });
    }
}
