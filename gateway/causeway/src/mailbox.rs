//! News for ZooKeeper connections and for etcd's watch streams: what they get without having asked for it at that moment.
//!
//! Posting happens with the machine's lock held, so that an event is in its connection's queue before any reply that
//! shows its change. Waking the connections' tasks does not: a change that a thousand connections watch wakes them
//! after the lock is free again and the change is on disk, those of another thread by one word to its [`Herald`].

use std::cell::OnceCell;
use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::future::poll_fn;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use bytes::Bytes;
use causeway_engine::core::KeyDispatch;
use causeway_engine::key_space::KeyEvent;
use causeway_engine::key_watch::StreamId;
use causeway_engine::watch::{Fired, WatchEvent, WatcherId};
use causeway_wire::etcd::SharedEvents;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::gateway::Gateway;
use crate::journal::{Journal, Position};

/// Events a connection or stream may have waiting; one that falls further behind is closed, and resumes by its protocol's
/// own means.
const LIMIT: usize = 65_536;

/// Something for a ZooKeeper connection that it did not ask for.
#[derive(Debug, Clone)]
pub enum TreeNews {
    /// A watch fired. To be sent before any reply that is handed over later.
    Event {
        /// The event.
        event: Arc<SharedEvent>,
        /// May leave from here on.
        after: Position,
    },
    /// The session is over, was taken by another connection, or the connection lags: close.
    Close,
}

/// One event for all its watchers. The first that sends it encodes it for all of them.
#[derive(Debug)]
pub struct SharedEvent {
    event: WatchEvent,
    body: OnceLock<Bytes>,
}

impl SharedEvent {
    /// The event.
    pub fn event(&self) -> &WatchEvent {
        &self.event
    }

    /// Its bytes, which `encode` makes unless somebody made them before.
    pub fn body(&self, encode: impl FnOnce(&WatchEvent) -> Bytes) -> Bytes {
        self.body.get_or_init(|| encode(&self.event)).clone()
    }
}

/// Something for a watch stream of etcd.
#[derive(Debug, Clone)]
pub enum KeyNews {
    /// Events of one revision for some of its watches.
    Events {
        /// Their revision.
        revision: i64,
        /// What these watches are told.
        events: Arc<SharedKeyEvents>,
        /// The watches, by the id that they have in the machine.
        watches: Vec<i64>,
        /// May leave from here on.
        after: Position,
    },
    /// The stream lags: it ends.
    Lagging,
}

/// Events of one revision for all that watch the same of it. The first stream that sends them makes them messages for
/// all.
#[derive(Debug)]
pub struct SharedKeyEvents {
    events: Arc<[KeyEvent]>,
    messages: OnceLock<SharedEvents>,
}

impl SharedKeyEvents {
    /// The events.
    pub fn events(&self) -> &[KeyEvent] {
        &self.events
    }

    /// As messages, which `translate` makes unless somebody made them before.
    pub fn messages(&self, translate: impl FnOnce(&[KeyEvent]) -> SharedEvents) -> &SharedEvents {
        self.messages.get_or_init(|| translate(&self.events))
    }
}

/// What a queue holds.
pub trait Item {
    /// What stands in a queue instead of all that it was too full for.
    fn close() -> Self;

    /// For how many events it counts.
    fn weight(&self) -> usize;
}

impl Item for TreeNews {
    fn close() -> Self {
        TreeNews::Close
    }

    fn weight(&self) -> usize {
        1
    }
}

impl Item for KeyNews {
    fn close() -> Self {
        KeyNews::Lagging
    }

    fn weight(&self) -> usize {
        match self {
            KeyNews::Events { watches, .. } => watches.len(),
            KeyNews::Lagging => 1,
        }
    }
}

/// The queues of all connections, or of all watch streams.
#[derive(Debug)]
pub struct Mailboxes<Id, T> {
    open: Mutex<HashMap<Id, Arc<Mailbox<T>>>>,
}

impl<Id, T> Default for Mailboxes<Id, T> {
    fn default() -> Self {
        Mailboxes {
            open: Mutex::default(),
        }
    }
}

/// Whoever reads a queue.
trait Reader: Debug + Send + Sync {
    fn wake(&self);

    /// The herald of its thread.
    fn home(&self) -> Option<&Arc<Herald>>;
}

type Readers = Vec<Arc<dyn Reader>>;

/// Connections to be woken when the machine's lock is free again: dropping it wakes them.
#[derive(Debug)]
pub struct Wakes<'j> {
    journal: &'j Journal,
    mailboxes: Readers,
    /// Nothing may leave before this is on disk.
    after: Position,
}

impl<'j> Wakes<'j> {
    /// Nobody yet.
    pub fn new(journal: &'j Journal) -> Self {
        Wakes {
            journal,
            mailboxes: Vec::new(),
            after: 0,
        }
    }
}

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        if self.mailboxes.is_empty() {
            return;
        }
        let at_once = !matches!(self.journal.check(self.after), Ok(false));
        let mut elsewhere: Vec<(Arc<Herald>, Readers)> = Vec::new();
        for mailbox in self.mailboxes.drain(..) {
            match mailbox.home().cloned() {
                Some(home) if !(at_once && home.is_here()) => {
                    match elsewhere.iter_mut().find(|(h, _)| Arc::ptr_eq(h, &home)) {
                        Some((_, mailboxes)) => mailboxes.push(mailbox),
                        None => elsewhere.push((home, vec![mailbox])),
                    }
                }
                _ => mailbox.wake(),
            }
        }
        for (herald, mailboxes) in elsewhere {
            herald.tell(self.after, mailboxes);
        }
    }
}

thread_local! {
    static HERE: OnceCell<Arc<Herald>> = const { OnceCell::new() };
}

/// Wakes connections on the thread that runs them, where it costs a place in a queue: from another thread each would
/// cost a lock and a system call.
#[derive(Debug, Default)]
pub struct Herald {
    told: Mutex<Vec<(Position, Readers)>>,
    news: Notify,
}

impl Herald {
    /// The herald of the calling thread from now on. It has to be run there.
    pub fn of_this_thread() -> Arc<Herald> {
        HERE.with(|here| here.get_or_init(Arc::default).clone())
    }

    fn here() -> Option<Arc<Herald>> {
        HERE.with(|here| here.get().cloned())
    }

    fn is_here(self: &Arc<Self>) -> bool {
        HERE.with(|here| here.get().is_some_and(|herald| Arc::ptr_eq(herald, self)))
    }

    fn tell(&self, after: Position, mailboxes: Readers) {
        self.told.lock().push((after, mailboxes));
        self.news.notify_one();
    }

    /// Does its work for as long as the thread lives.
    pub async fn run(self: Arc<Self>, gateway: Arc<Gateway>) {
        loop {
            self.news.notified().await;
            let told = std::mem::take(&mut *self.told.lock());
            for (after, mailboxes) in told {
                // When the disk has failed, each connection finds that out and ends.
                let _ = gateway.durable(after).await;
                for mailbox in mailboxes {
                    mailbox.wake();
                }
            }
        }
    }
}

impl<Id: Copy + Eq + Hash, T: Item + Debug + Send + 'static> Mailboxes<Id, T> {
    /// The queue of a connection's or stream's news; the last of them is [`Item::close`].
    pub fn open(&self, id: Id) -> News<T> {
        let mailbox = Arc::new(Mailbox {
            home: Herald::here(),
            ..Mailbox::default()
        });
        self.open.lock().insert(id, mailbox.clone());
        News(mailbox)
    }

    /// It takes nothing any more.
    pub fn forget(&self, id: Id) {
        self.open.lock().remove(&id);
    }

    /// Asks it to close.
    pub fn close(&self, id: Id, wakes: &mut Wakes<'_>) {
        if let Some(mailbox) = self.open.lock().remove(&id) {
            mailbox.post(T::close());
            wakes.mailboxes.push(mailbox);
        }
    }
}

/// Posts to one queue of those that are open.
fn post<Id: Eq + Hash, T: Item + Debug + Send + 'static>(
    open: &mut HashMap<Id, Arc<Mailbox<T>>>,
    id: &Id,
    news: impl FnOnce() -> T,
    wakes: &mut Wakes<'_>,
) {
    let Some(mailbox) = open.get(id) else {
        return;
    };
    match mailbox.post(news()) {
        Posted::Behind => {}
        Posted::First => wakes.mailboxes.push(mailbox.clone()),
        // It lags, and costs only itself.
        Posted::Full => {
            if let Some(mailbox) = open.remove(id) {
                wakes.mailboxes.push(mailbox);
            }
        }
    }
}

impl Mailboxes<WatcherId, TreeNews> {
    /// Hands events over, in order.
    pub fn post(&self, fired: Vec<Fired>, after: Position, wakes: &mut Wakes<'_>) {
        if fired.is_empty() {
            return;
        }
        wakes.after = wakes.after.max(after);
        let mut open = self.open.lock();
        for Fired { event, watchers } in fired {
            let body = OnceLock::new();
            let event = Arc::new(SharedEvent { event, body });
            for watcher in watchers {
                let event = event.clone();
                let news = || TreeNews::Event { event, after };
                post(&mut open, &watcher, news, wakes);
            }
        }
    }
}

impl Mailboxes<StreamId, KeyNews> {
    /// Hands events over, in order: to each stream at once what several of its watches are told.
    pub fn post(&self, dispatches: Vec<KeyDispatch>, after: Position, wakes: &mut Wakes<'_>) {
        if dispatches.is_empty() {
            return;
        }
        wakes.after = wakes.after.max(after);
        let mut open = self.open.lock();
        let mut shared: HashMap<(i64, usize), Arc<SharedKeyEvents>> = HashMap::new();
        let of_one = |a: &KeyDispatch, b: &KeyDispatch| {
            (a.revision, a.delivery.stream, a.delivery.batch)
                == (b.revision, b.delivery.stream, b.delivery.batch)
        };
        for together in dispatches.chunk_by(of_one) {
            let Some(KeyDispatch { revision, delivery }) = together.first() else {
                continue;
            };
            let events = shared
                .entry((*revision, delivery.batch))
                .or_insert_with(|| {
                    Arc::new(SharedKeyEvents {
                        events: delivery.events.clone(),
                        messages: OnceLock::new(),
                    })
                });
            let watch_id = |dispatch: &KeyDispatch| dispatch.delivery.watch_id;
            let news = || KeyNews::Events {
                revision: *revision,
                events: events.clone(),
                watches: together.iter().map(watch_id).collect(),
                after,
            };
            post(&mut open, &delivery.stream, news, wakes);
        }
    }
}

#[derive(Debug)]
struct Mailbox<T> {
    waiting: Mutex<Waiting<T>>,
    /// How many wait: nearly always none, which is seen without the lock.
    count: AtomicUsize,
    reader: AtomicWaker,
    /// Of the thread that reads.
    home: Option<Arc<Herald>>,
}

#[derive(Debug)]
struct Waiting<T> {
    items: VecDeque<T>,
    weight: usize,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Mailbox {
            waiting: Mutex::new(Waiting {
                items: VecDeque::new(),
                weight: 0,
            }),
            count: AtomicUsize::new(0),
            reader: AtomicWaker::new(),
            home: None,
        }
    }
}

impl<T: Debug + Send> Reader for Mailbox<T> {
    fn wake(&self) {
        self.reader.wake();
    }

    fn home(&self) -> Option<&Arc<Herald>> {
        self.home.as_ref()
    }
}

/// Places of an empty queue that are kept: most connections are idle most of the time.
const KEPT: usize = 8;

enum Posted {
    /// The reader has to be woken.
    First,
    /// It was, and has not taken everything yet.
    Behind,
    /// The queue was full: everything in it is dropped for the word to close.
    Full,
}

impl<T: Item> Mailbox<T> {
    fn post(&self, news: T) -> Posted {
        let mut waiting = self.waiting.lock();
        if waiting.weight >= LIMIT {
            waiting.items.clear();
            waiting.items.push_back(T::close());
            self.count.store(1, Ordering::Release);
            return Posted::Full;
        }
        waiting.weight += news.weight();
        waiting.items.push_back(news);
        self.count.store(waiting.items.len(), Ordering::Release);
        if waiting.items.len() == 1 {
            Posted::First
        } else {
            Posted::Behind
        }
    }
}

/// The reading end of a queue.
#[derive(Debug)]
pub struct News<T>(Arc<Mailbox<T>>);

impl<T: Item> News<T> {
    /// The next item, if there is one.
    pub fn try_next(&mut self) -> Option<T> {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut waiting = self.0.waiting.lock();
        let next = waiting.items.pop_front();
        waiting.weight -= next.as_ref().map_or(0, T::weight).min(waiting.weight);
        self.0.count.store(waiting.items.len(), Ordering::Release);
        if waiting.items.is_empty() && waiting.items.capacity() > KEPT {
            waiting.items = VecDeque::new();
        }
        next
    }

    /// The next item. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> T {
        poll_fn(|context| {
            if let Some(news) = self.try_next() {
                return Poll::Ready(news);
            }
            self.0.reader.register(context.waker());
            // Posted between the look and the registration.
            self.try_next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};

    use causeway_engine::watch::EventKind;

    use super::*;

    type TreeBoxes = Mailboxes<WatcherId, TreeNews>;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn fired(zxid: i64, watchers: &[u64]) -> Fired {
        Fired {
            event: WatchEvent {
                kind: EventKind::NodeCreated,
                path: Arc::from("/a"),
                zxid,
            },
            watchers: watchers.iter().map(|w| WatcherId(*w)).collect(),
        }
    }

    fn post(boxes: &TreeBoxes, zxid: i64) {
        let journal = Journal::in_memory();
        boxes.post(vec![fired(zxid, &[1, 2])], 0, &mut Wakes::new(&journal));
    }

    fn zxid(news: Option<TreeNews>) -> Option<i64> {
        match news? {
            TreeNews::Event { event, .. } => Some(event.event().zxid),
            TreeNews::Close => None,
        }
    }

    #[test]
    fn events_arrive_in_order_and_wake_once_the_lock_is_free() {
        let boxes = TreeBoxes::default();
        let mut news = boxes.open(WatcherId(1));
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        {
            let mut next = std::pin::pin!(news.next());
            assert!(next.as_mut().poll(&mut context).is_pending());
        }
        let journal = Journal::in_memory();
        let mut wakes = Wakes::new(&journal);
        boxes.post(vec![fired(1, &[1, 2]), fired(2, &[1])], 0, &mut wakes);
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        drop(wakes);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(zxid(news.try_next()), Some(1));
        assert_eq!(zxid(news.try_next()), Some(2));
        assert!(news.try_next().is_none());
    }

    #[test]
    fn the_herald_of_another_thread_wakes_its_connections() {
        let gateway = crate::app::in_memory(crate::config::defaults()).expect("a gateway");
        let boxes = Arc::new(TreeBoxes::default());
        let (waits, all_wait) = std::sync::mpsc::channel();
        let theirs = boxes.clone();
        let reader = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .expect("a runtime");
            runtime.spawn(Herald::of_this_thread().run(gateway));
            let (mut one, mut two) = (theirs.open(WatcherId(1)), theirs.open(WatcherId(2)));
            runtime.block_on(async {
                let mut both = std::pin::pin!(futures::future::join(one.next(), two.next()));
                assert!(futures::poll!(both.as_mut()).is_pending());
                waits.send(()).expect("somebody listens");
                let (one, two) = both.await;
                [zxid(Some(one)), zxid(Some(two))]
            })
        });
        all_wait.recv().expect("they wait");
        post(&boxes, 5);
        assert_eq!(reader.join().ok(), Some([Some(5), Some(5)]));
    }

    #[test]
    fn an_event_is_encoded_once_for_all() {
        let boxes = TreeBoxes::default();
        let (mut one, mut two) = (boxes.open(WatcherId(1)), boxes.open(WatcherId(2)));
        post(&boxes, 1);
        let encoded = AtomicUsize::new(0);
        for news in [&mut one, &mut two] {
            let Some(TreeNews::Event { event, .. }) = news.try_next() else {
                panic!("no event");
            };
            let body = event.body(|_| {
                encoded.fetch_add(1, Ordering::Relaxed);
                Bytes::from_static(b"bytes")
            });
            assert_eq!(body, "bytes");
        }
        assert_eq!(encoded.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_connection_that_lags_is_closed_and_no_other() {
        let boxes = TreeBoxes::default();
        let (mut slow, mut quick) = (boxes.open(WatcherId(1)), boxes.open(WatcherId(2)));
        for n in 0..=LIMIT {
            post(&boxes, n as i64);
            assert_eq!(zxid(quick.try_next()), Some(n as i64));
        }
        assert!(matches!(slow.try_next(), Some(TreeNews::Close)));
        assert!(slow.try_next().is_none());
    }

    fn told(stream: u64, watch_id: i64, revision: i64, batch: usize) -> KeyDispatch {
        KeyDispatch {
            revision,
            delivery: causeway_engine::key_watch::Delivery {
                stream: StreamId(stream),
                watch_id,
                prev_kv: false,
                batch,
                events: Arc::new([]),
            },
        }
    }

    fn key_news(news: Option<KeyNews>) -> Option<(i64, Vec<i64>, Arc<SharedKeyEvents>)> {
        match news? {
            KeyNews::Events {
                revision,
                events,
                watches,
                ..
            } => Some((revision, watches, events)),
            KeyNews::Lagging => None,
        }
    }

    #[test]
    fn a_stream_is_told_at_once_what_its_watches_share() {
        let boxes = Mailboxes::<StreamId, KeyNews>::default();
        let (mut one, mut two) = (boxes.open(StreamId(1)), boxes.open(StreamId(2)));
        let journal = Journal::in_memory();
        let dispatches = vec![
            told(1, 1, 7, 0),
            told(1, 2, 7, 0),
            told(1, 3, 7, 1),
            told(2, 1, 7, 0),
            told(1, 1, 8, 0),
        ];
        boxes.post(dispatches, 0, &mut Wakes::new(&journal));
        let first = key_news(one.try_next()).expect("news");
        assert_eq!((first.0, &first.1[..]), (7, &[1, 2][..]));
        for want in [(7, vec![3]), (8, vec![1])] {
            let (revision, watches, _) = key_news(one.try_next()).expect("news");
            assert_eq!((revision, watches), want);
        }
        let other = key_news(two.try_next()).expect("news");
        assert_eq!((other.0, other.1), (7, vec![1]));
        assert!(Arc::ptr_eq(&first.2, &other.2), "encoded once");
        assert!(one.try_next().is_none() && two.try_next().is_none());
    }

    #[test]
    fn a_stream_lags_by_the_events_of_all_its_watches() {
        let boxes = Mailboxes::<StreamId, KeyNews>::default();
        let mut slow = boxes.open(StreamId(1));
        let journal = Journal::in_memory();
        let watches = 1000;
        for revision in 0..=(LIMIT / watches + 1) as i64 {
            let all = (0..watches as i64).map(|watch| told(1, watch, revision, 0));
            boxes.post(all.collect(), 0, &mut Wakes::new(&journal));
        }
        assert!(matches!(slow.try_next(), Some(KeyNews::Lagging)));
        assert!(slow.try_next().is_none());
    }
}
