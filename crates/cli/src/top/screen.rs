//! The terminal: drawn on, read from, and left as it was.

use std::io;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::widgets::Paragraph;
use tokio::sync::mpsc;

use super::cell::Palette;
use super::model::{Key, Model};
use super::view;

/// How long the thread of the keys can outlive the screen.
const POLL: Duration = Duration::from_millis(200);

/// The terminal, while `top` has it. It is given back when this is dropped, and on a panic before the message.
pub struct Screen(DefaultTerminal);

impl Screen {
    /// # Errors
    /// There is no terminal.
    pub fn open() -> io::Result<Screen> {
        // Also sets a panic hook that gives the terminal back, and then calls the one that was set.
        Ok(Screen(ratatui::try_init()?))
    }

    /// Columns and rows.
    pub fn size(&self) -> io::Result<(u16, u16)> {
        let size = self.0.size()?;
        Ok((size.width, size.height))
    }

    pub fn draw(&mut self, model: &Model, palette: Palette) -> io::Result<()> {
        let now = Instant::now();
        self.0.draw(|frame| draw(frame, model, palette, now))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing is left to do if the terminal is gone.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}

pub fn draw(frame: &mut Frame<'_>, model: &Model, palette: Palette, now: Instant) {
    let rows = view::rows(model, palette, now);
    frame.render_widget(Paragraph::new(rows), frame.area());
}

/// A key, or nothing but a reason to draw again: the window has another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    Key(Key),
    Resized,
}

/// The keys, read in a thread of their own. It ends when nobody receives them.
pub fn inputs() -> mpsc::Receiver<Input> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let event = match event::poll(POLL) {
                Ok(true) => event::read(),
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            let Ok(event) = event else {
                // The terminal is gone: the receiver sees that no more keys come.
                return;
            };
            if let Some(input) = input(&event)
                && sender.blocking_send(input).is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn input(event: &Event) -> Option<Input> {
    match event {
        Event::Resize(..) => Some(Input::Resized),
        Event::Key(key) if key.kind != KeyEventKind::Release => key_of(*key).map(Input::Key),
        _ => None,
    }
}

fn key_of(key: KeyEvent) -> Option<Key> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let key = match key.code {
        KeyCode::Char('c') if control => Key::Interrupt,
        // In a terminal without keys for them, as in `less`.
        KeyCode::Char('f') if control => Key::PageDown,
        KeyCode::Char('b') if control => Key::PageUp,
        KeyCode::Char(_) if control => return None,
        KeyCode::Char(char) => Key::Char(char),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Esc,
        KeyCode::Tab => Key::Tab,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    };
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_terminal_are_keys_of_the_model() {
        for (code, modifiers, key) in [
            (KeyCode::Char('q'), KeyModifiers::NONE, Some(Key::Char('q'))),
            (
                KeyCode::Char('G'),
                KeyModifiers::SHIFT,
                Some(Key::Char('G')),
            ),
            (
                KeyCode::Char('c'),
                KeyModifiers::CONTROL,
                Some(Key::Interrupt),
            ),
            (KeyCode::Char('x'), KeyModifiers::CONTROL, None),
            (KeyCode::Enter, KeyModifiers::NONE, Some(Key::Enter)),
            (KeyCode::F(1), KeyModifiers::NONE, None),
        ] {
            let event = Event::Key(KeyEvent::new(code, modifiers));
            assert_eq!(input(&event), key.map(Input::Key), "{code:?}");
        }
        assert_eq!(input(&Event::Resize(80, 24)), Some(Input::Resized));
        assert_eq!(input(&Event::FocusGained), None);
    }
}
