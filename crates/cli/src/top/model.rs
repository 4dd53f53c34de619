//! What the screen shows and how keys change it. No clock, terminal or network: see `fetch` and `screen` for those.

use std::time::{Duration, Instant};

use nowserving_client::{
    ClusterStatus, JournalEntryReply, LineName, LineSummary, TokenName, TokenOrder, TokensReply,
};

use super::lines::{Known, Lines, Sort};
use super::pace::Detail;
use super::view;

/// A filter has at most so many characters.
const FILTER_MAX: usize = 60;
/// The screen counts as old after so many intervals without an answer.
const OLD_AFTER: u32 = 3;
/// Nobody turns more pages of tokens than this; the way back is kept in memory.
const PAGES_MAX: usize = 10_000;

/// A key, whatever terminal it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Esc,
    Tab,
    Backspace,
    /// Ctrl-C.
    Interrupt,
    Char(char),
}

/// Whether to go on after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Go,
    Quit,
}

/// The answers of one refresh.
#[derive(Debug)]
pub struct Refresh {
    pub at: Instant,
    pub cluster: ClusterStatus,
    pub list: Vec<LineSummary>,
    /// The cluster has more lines than are listed.
    pub more: bool,
    pub details: Vec<Detail>,
    pub looked_into: Option<LookedInto>,
}

/// Tokens and journal of one line.
#[derive(Debug, Clone)]
pub struct LookedInto {
    pub line: LineName,
    /// The page that was asked for, and the answer or the reason why there is none.
    pub page: TokensPage,
    pub tokens: Result<TokensReply, String>,
    /// Newest first.
    pub journal: Result<Vec<JournalEntryReply>, String>,
}

/// A page of tokens, as it is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokensPage {
    pub after: Vec<TokenName>,
    pub order: TokenOrder,
    pub limit: u64,
}

/// News from the network.
#[derive(Debug)]
pub enum Update {
    Refreshed(Box<Refresh>),
    /// Why there is no answer.
    Trouble(String),
}

/// What the next refresh shall ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Want {
    /// The lines whose details are on the screen.
    pub first: Vec<LineName>,
    pub look_into: Option<(LineName, TokensPage)>,
    pub paused: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    List,
    Cluster,
    Line(InLine),
}

/// One line is looked into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InLine {
    pub name: LineName,
    pub part: Part,
    pub order: TokenOrder,
    /// The `after` of each page of tokens that was turned over.
    pub turned: Vec<Vec<TokenName>>,
    /// The version of the first entry of each page of the journal but the first, which begins with the newest.
    pub journal_from: Vec<u64>,
}

/// What the lower half of a line's view shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Tokens,
    Journal,
}

#[derive(Debug)]
pub struct Model {
    pub lines: Lines,
    pub cluster: Option<ClusterStatus>,
    pub looked_into: Option<LookedInto>,
    pub place: Place,
    pub sort: Sort,
    pub reverse: bool,
    pub filter: String,
    /// The filter is being typed.
    pub typing: bool,
    pub help: bool,
    pub paused: bool,
    pub trouble: Option<String>,
    /// When the newest answer came.
    pub refreshed: Option<Instant>,
    pub every: Duration,
    /// Columns and rows of the screen.
    pub size: (u16, u16),
    /// Stays on its line when others pass it; `None`: on the first.
    selected: Option<LineName>,
    /// Rows that the view of the cluster is scrolled by.
    pub scrolled: usize,
}

impl Model {
    pub fn new(sort: Sort, filter: &str, every: Duration) -> Model {
        Model {
            lines: Lines::default(),
            cluster: None,
            looked_into: None,
            place: Place::List,
            sort,
            reverse: false,
            filter: filter.chars().take(FILTER_MAX).collect(),
            typing: false,
            help: false,
            paused: false,
            trouble: None,
            refreshed: None,
            every,
            size: (80, 24),
            selected: None,
            scrolled: 0,
        }
    }

    pub fn take(&mut self, update: Update) {
        match update {
            Update::Trouble(why) => self.trouble = Some(why),
            Update::Refreshed(refresh) => {
                let refresh = *refresh;
                self.trouble = None;
                self.refreshed = Some(refresh.at);
                self.cluster = Some(refresh.cluster);
                self.lines.take(refresh.list, refresh.more, refresh.details);
                // An answer about a line or page that was left meanwhile is of no use.
                if refresh.looked_into.is_some() {
                    self.looked_into = refresh.looked_into;
                }
            }
        }
    }

    /// The lines in their order on the screen.
    pub fn sorted(&self) -> Vec<&Known> {
        self.lines.sorted(self.sort, self.reverse, &self.filter)
    }

    /// The row of the selected line, counted from 0.
    pub fn selected(&self, sorted: &[&Known]) -> usize {
        let name = self.selected.as_ref();
        let at = name.and_then(|name| sorted.iter().position(|it| it.summary.line == *name));
        at.unwrap_or(0)
    }

    /// The first row of the list on the screen, where it has so many rows.
    pub fn first_row(&self, selected: usize, rows: usize) -> usize {
        let rows = rows.max(1);
        selected / rows * rows
    }

    /// Why what is shown is old, if it is.
    pub fn old(&self, now: Instant) -> Option<String> {
        if self.paused {
            return None;
        }
        if let Some(why) = &self.trouble {
            return Some(why.clone());
        }
        let age = now.saturating_duration_since(self.refreshed?);
        let limit = self.every * OLD_AFTER + Duration::from_secs(2);
        (age > limit).then(|| "no answer".to_owned())
    }

    /// What to ask for next: details of the lines that are on the screen, and the line that is looked into.
    pub fn want(&self) -> Want {
        let sorted = self.sorted();
        let rows = view::list::rows(self.size).max(1);
        let first = self.first_row(self.selected(&sorted), rows);
        let shown = sorted.iter().skip(first).take(rows);
        let mut names: Vec<LineName> = shown.map(|it| it.summary.line.clone()).collect();
        let mut look_into = None;
        if let Place::Line(inside) = &self.place {
            names = vec![inside.name.clone()];
            look_into = Some((inside.name.clone(), self.page(inside)));
        }
        Want {
            first: names,
            look_into,
            paused: self.paused,
        }
    }

    fn page(&self, inside: &InLine) -> TokensPage {
        TokensPage {
            after: inside.turned.last().cloned().unwrap_or_default(),
            order: inside.order,
            limit: view::line::room(self.size, self.lanes_of(inside)) as u64,
        }
    }

    /// How many lanes the line has, as far as is known.
    pub fn lanes_of(&self, inside: &InLine) -> usize {
        let known = self.lines.get(&inside.name);
        let detail = known.and_then(|it| it.detail.as_ref());
        detail.map_or(1, |it| it.shown.board.lanes.len())
    }

    /// The version that the page of the journal after the one that is shown begins with.
    pub fn next_entries(&self) -> Option<u64> {
        let Place::Line(inside) = &self.place else {
            return None;
        };
        let entries = self.looked_into.as_ref()?.journal.as_ref().ok()?;
        let (from, lanes) = (inside.journal_from.last(), self.lanes_of(inside));
        view::line::entries_page(entries, from, self.size, lanes).1
    }

    pub fn press(&mut self, key: Key) -> Flow {
        if key == Key::Interrupt {
            return Flow::Quit;
        }
        if self.help {
            // Any key ends the help; `q` no more than that.
            self.help = false;
            return Flow::Go;
        }
        if self.typing {
            self.type_filter(key);
            return Flow::Go;
        }
        match key {
            Key::Char('q') => return Flow::Quit,
            Key::Char('?') | Key::Char('h') => self.help = true,
            Key::Char('p') => self.paused = !self.paused,
            _ => match self.place {
                Place::List => self.press_in_list(key),
                Place::Cluster => self.press_in_cluster(key),
                Place::Line(_) => self.press_in_line(key),
            },
        }
        Flow::Go
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.typing = false,
            Key::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(char) if self.filter.chars().count() < FILTER_MAX => self.filter.push(char),
            _ => {}
        }
    }

    fn press_in_list(&mut self, key: Key) {
        let page = view::list::rows(self.size).max(1) as isize;
        match key {
            Key::Up | Key::Char('k') => self.select(-1),
            Key::Down | Key::Char('j') => self.select(1),
            Key::PageUp => self.select(-page),
            Key::PageDown | Key::Char(' ') => self.select(page),
            Key::Home | Key::Char('g') => self.selected = None,
            Key::End | Key::Char('G') => self.select(isize::MAX),
            Key::Char('s') => self.sort = self.sort.turned(1),
            Key::Char('S') => self.sort = self.sort.turned(-1),
            Key::Char('r') => self.reverse = !self.reverse,
            Key::Char('/') => self.typing = true,
            Key::Esc => self.filter.clear(),
            Key::Tab | Key::Char('c') => {
                self.scrolled = 0;
                self.place = Place::Cluster;
            }
            Key::Enter => self.open(),
            _ => {}
        }
    }

    fn press_in_cluster(&mut self, key: Key) {
        match key {
            Key::Up | Key::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            Key::Down | Key::Char('j') => self.scrolled += 1,
            Key::PageUp => self.scrolled = self.scrolled.saturating_sub(10),
            Key::PageDown | Key::Char(' ') => self.scrolled += 10,
            Key::Home | Key::Char('g') => self.scrolled = 0,
            Key::Esc | Key::Tab | Key::Char('c') => self.place = Place::List,
            _ => {}
        }
        // There is nothing below the last row.
        self.scrolled = self.scrolled.min(view::cluster::scroll_max(self));
    }

    fn press_in_line(&mut self, key: Key) {
        let (next, next_entries) = (self.next_page(), self.next_entries());
        let Place::Line(inside) = &mut self.place else {
            return;
        };
        let is_journal = inside.part == Part::Journal;
        match key {
            Key::PageDown | Key::Char('n' | ' ') if is_journal => {
                inside.journal_from.extend(next_entries);
            }
            Key::PageUp | Key::Char('b') if is_journal => {
                inside.journal_from.pop();
            }
            Key::Home | Key::Char('g') if is_journal => inside.journal_from.clear(),
            Key::Tab => {
                inside.part = match inside.part {
                    Part::Tokens => Part::Journal,
                    Part::Journal => Part::Tokens,
                }
            }
            Key::Char('o') => {
                inside.turned.clear();
                inside.order = match inside.order {
                    TokenOrder::Number => TokenOrder::Service,
                    TokenOrder::Service => TokenOrder::Number,
                }
            }
            Key::PageDown | Key::Char('n' | ' ') => {
                if let Some(next) = next.filter(|_| inside.turned.len() < PAGES_MAX) {
                    inside.turned.push(next);
                }
            }
            Key::PageUp | Key::Char('b') => {
                inside.turned.pop();
            }
            Key::Home | Key::Char('g') => inside.turned.clear(),
            Key::Esc | Key::Backspace => {
                self.place = Place::List;
                self.looked_into = None;
            }
            _ => {}
        }
    }

    /// The `after` of the page of tokens after the one that is shown.
    fn next_page(&self) -> Option<Vec<TokenName>> {
        self.shown_tokens()?.next.clone()
    }

    /// The page of tokens that was asked for last, once it is there.
    pub fn shown_tokens(&self) -> Option<&TokensReply> {
        let Place::Line(inside) = &self.place else {
            return None;
        };
        let it = self.looked_into.as_ref()?;
        let wanted = self.page(inside);
        let same = it.line == inside.name
            && it.page.after == wanted.after
            && it.page.order == wanted.order;
        it.tokens.as_ref().ok().filter(|_| same)
    }

    fn select(&mut self, by: isize) {
        let sorted = self.sorted();
        let at = self.selected(&sorted);
        let last = sorted.len().saturating_sub(1);
        let at = at.saturating_add_signed(by).min(last);
        self.selected = sorted.get(at).map(|it| it.summary.line.clone());
    }

    fn open(&mut self) {
        let sorted = self.sorted();
        let at = self.selected(&sorted);
        let Some(name) = sorted.get(at).map(|it| it.summary.line.clone()) else {
            return;
        };
        self.selected = Some(name.clone());
        self.looked_into = None;
        self.place = Place::Line(InLine {
            name,
            part: Part::Tokens,
            order: TokenOrder::Number,
            turned: Vec::new(),
            journal_from: Vec::new(),
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::top::scenes;

    fn selected(model: &Model) -> String {
        let sorted = model.sorted();
        sorted[model.selected(&sorted)].summary.line.to_string()
    }

    fn press(model: &mut Model, keys: &[Key]) {
        for key in keys {
            assert_eq!(model.press(*key), Flow::Go, "{key:?}");
        }
    }

    #[test]
    fn the_cursor_stays_on_its_line() {
        let mut model = scenes::busy_day(Instant::now());
        let first = selected(&model);
        press(&mut model, &[Key::Down, Key::Down]);
        let third = selected(&model);
        assert_ne!(first, third);
        press(&mut model, &[Key::Char('r')]);
        assert_eq!(selected(&model), third);
        press(&mut model, &[Key::Home]);
        assert_ne!(selected(&model), first, "it is the last one now");
        press(&mut model, &[Key::End, Key::Down, Key::PageDown]);
        assert_eq!(selected(&model), first);
        press(&mut model, &[Key::PageUp, Key::PageUp, Key::Up]);
        assert_ne!(selected(&model), first);
    }

    #[test]
    fn a_filter_is_typed_and_taken_back() {
        let mut model = scenes::busy_day(Instant::now());
        let all = model.sorted().len();
        press(&mut model, &[Key::Char('/')]);
        for char in "concertq".chars() {
            press(&mut model, &[Key::Char(char)]);
        }
        assert_eq!(model.sorted().len(), 0);
        press(&mut model, &[Key::Backspace, Key::Enter]);
        assert!(!model.typing && model.filter == "concert");
        assert!(!model.sorted().is_empty() && model.sorted().len() < all);
        press(&mut model, &[Key::Esc]);
        assert_eq!(model.sorted().len(), all);
        press(&mut model, &[Key::Char('/')]);
        press(&mut model, &[Key::Char('x'); 2 * FILTER_MAX]);
        assert_eq!(model.filter.len(), FILTER_MAX);
        press(&mut model, &[Key::Esc]);
        assert_eq!(model.filter, "");
    }

    #[test]
    fn keys_end_it() {
        let mut model = scenes::busy_day(Instant::now());
        press(&mut model, &[Key::Char('?')]);
        assert!(model.help);
        // It ends the help only.
        press(&mut model, &[Key::Char('q')]);
        assert!(!model.help);
        assert_eq!(model.press(Key::Char('q')), Flow::Quit);
        press(&mut model, &[Key::Char('/')]);
        assert_eq!(model.press(Key::Interrupt), Flow::Quit);
    }

    #[test]
    fn one_line_is_looked_into_page_by_page() {
        let mut model = scenes::busy_day(Instant::now());
        let name = selected(&model);
        press(&mut model, &[Key::Enter]);
        let want = model.want();
        let (line, page) = want.look_into.clone().unwrap();
        assert_eq!(line.as_str(), name);
        assert!(page.after.is_empty() && page.limit > 0, "{page:?}");
        // Without an answer there is no next page.
        press(&mut model, &[Key::PageDown]);
        assert_eq!(model.want(), want);
        model.looked_into = Some(scenes::looked_into(&name, page));
        press(&mut model, &[Key::PageDown]);
        let (_, page) = model.want().look_into.unwrap();
        assert_eq!(page.after.len(), 1);
        assert!(model.shown_tokens().is_none(), "that was the page before");
        press(&mut model, &[Key::Char('o')]);
        let (_, page) = model.want().look_into.unwrap();
        assert_eq!((page.after.len(), page.order), (0, TokenOrder::Service));
        press(&mut model, &[Key::Esc]);
        assert_eq!(model.want().look_into, None);
        assert_eq!(selected(&model), name);
    }

    #[test]
    fn the_journal_has_pages_that_stay_when_entries_come() {
        let mut model = scenes::busy_day(Instant::now());
        press(&mut model, &[Key::Enter, Key::Tab]);
        let (line, page) = model.want().look_into.unwrap();
        let mut looked = scenes::looked_into(line.as_str(), page);
        let entry = |version| JournalEntryReply {
            version,
            what: "paused".to_owned(),
            ..JournalEntryReply::default()
        };
        looked.journal = Ok((1..=40).rev().map(entry).collect());
        model.looked_into = Some(looked.clone());
        let second = model.next_entries().unwrap();
        press(&mut model, &[Key::Char('n')]);
        let third = model.next_entries().unwrap();
        assert!(third < second && second < 40, "{second} {third}");
        looked.journal = Ok((1..=50).rev().map(entry).collect());
        model.looked_into = Some(looked);
        assert_eq!(model.next_entries(), Some(third));
        press(&mut model, &[Key::Char('n'); 20]);
        assert_eq!(model.next_entries(), None);
        press(&mut model, &[Key::Char('b'), Key::Home]);
        assert!(model.next_entries().unwrap() > second, "newest first");
    }

    #[test]
    fn it_says_that_it_is_old() {
        let start = Instant::now();
        let mut model = scenes::busy_day(start);
        assert_eq!(model.old(start), None);
        let later = start + Duration::from_secs(60);
        assert_eq!(model.old(later).as_deref(), Some("no answer"));
        model.take(Update::Trouble("no node answers".to_owned()));
        assert_eq!(model.old(start).as_deref(), Some("no node answers"));
        press(&mut model, &[Key::Char('p')]);
        assert!(model.want().paused && model.old(later).is_none());
    }

    #[test]
    fn details_are_asked_for_of_lines_on_the_screen() {
        let mut model = scenes::many(5_000, Instant::now());
        let rows = view::list::rows(model.size);
        assert_eq!(model.want().first.len(), rows);
        press(&mut model, &[Key::PageDown]);
        let second = model.want().first;
        press(&mut model, &[Key::Down]);
        assert_eq!(model.want().first, second);
        press(&mut model, &[Key::End]);
        assert!(model.want().first.len() <= rows);
    }
}
