//! A network link that can be cut: a TCP proxy between a client and a server.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc as answers;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A link to one server, or to each of several. It works at the start; dropping it closes every connection.
#[derive(Debug)]
pub struct Link {
    address: String,
    orders: mpsc::UnboundedSender<(Order, answers::Sender<Result<()>>)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone, Copy)]
enum Order {
    Cut,
    Blackhole,
    Mend,
    Slow(Duration),
    End,
}

impl Link {
    /// A link to `upstream`: `host:port`, or several with commas between.
    pub fn start(upstream: &str) -> Result<Link> {
        let upstreams = upstream
            .split(',')
            .map(|one| {
                let found = one.trim().to_socket_addrs().context("upstream")?.next();
                found.with_context(|| format!("no address: {one:?}"))
            })
            .collect::<Result<Vec<SocketAddr>>>()?;
        // A thread with a runtime of its own, so that tests with and without one can hold a link.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (orders, received) = mpsc::unbounded_channel();
        let (say_ports, ports) = answers::channel();
        let thread = std::thread::Builder::new()
            .name("link".to_string())
            .spawn(move || {
                runtime.block_on(async {
                    match Ports::open(&upstreams) {
                        Ok((ports, numbers)) => {
                            let _ = say_ports.send(Ok(numbers));
                            serve(ports, received).await;
                        }
                        Err(error) => {
                            let _ = say_ports.send(Err(error));
                        }
                    }
                });
            })?;
        let ports = ports.recv().context("the link ended")??;
        let address = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect::<Vec<_>>()
            .join(",");
        Ok(Link {
            address,
            orders,
            thread: Some(thread),
        })
    }

    /// Where clients connect: one address per upstream, in its order.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Ends every connection by a reset to both sides and refuses new ones. What was on its way is lost.
    pub fn cut(&self) -> Result<()> {
        self.order(Order::Cut)
    }

    /// Goes on accepting connections and passes nothing, in either direction; nobody is told. What is sent
    /// meanwhile arrives after [`Link::mend`], as TCP would send it again.
    pub fn blackhole(&self) -> Result<()> {
        self.order(Order::Blackhole)
    }

    /// Works as at the start, on the same ports and without delay.
    pub fn mend(&self) -> Result<()> {
        self.order(Order::Mend)
    }

    /// From now on, whatever arrives in either direction is passed on this much later, in order.
    pub fn slow(&self, delay: Duration) -> Result<()> {
        self.order(Order::Slow(delay))
    }

    fn order(&self, order: Order) -> Result<()> {
        let (done, answer) = answers::channel();
        self.orders
            .send((order, done))
            .map_err(|_| anyhow!("the link ended"))?;
        answer.recv().context("the link ended")?
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.order(Order::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the connections obey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    mode: Mode,
    delay: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    Cut,
    Blackhole,
}

/// The ports of the link. A port of a cut link is bound and not listened on: the kernel refuses connections,
/// and nobody else gets the port.
#[derive(Debug)]
struct Ports {
    upstreams: Vec<(SocketAddr, SocketAddr)>,
    reserved: Vec<TcpSocket>,
    acceptors: JoinSet<()>,
    accepted: mpsc::UnboundedReceiver<(TcpStream, SocketAddr)>,
    accept: mpsc::UnboundedSender<(TcpStream, SocketAddr)>,
}

impl Ports {
    fn open(upstreams: &[SocketAddr]) -> Result<(Ports, Vec<u16>)> {
        let (accept, accepted) = mpsc::unbounded_channel();
        let mut ports = Ports {
            upstreams: Vec::new(),
            reserved: Vec::new(),
            acceptors: JoinSet::new(),
            accepted,
            accept,
        };
        for upstream in upstreams {
            let socket = reserve((Ipv4Addr::LOCALHOST, 0).into())?;
            ports.upstreams.push((socket.local_addr()?, *upstream));
            ports.reserved.push(socket);
        }
        ports.listen()?;
        let numbers = ports.upstreams.iter().map(|(own, _)| own.port()).collect();
        Ok((ports, numbers))
    }

    /// Accepts on every port; nothing to do when it does already.
    fn listen(&mut self) -> Result<()> {
        for (socket, (_, upstream)) in self.reserved.drain(..).zip(&self.upstreams) {
            let listener = socket.listen(1024)?;
            self.acceptors
                .spawn(accept(listener, *upstream, self.accept.clone()));
        }
        Ok(())
    }

    /// Refuses on every port.
    async fn refuse(&mut self) -> Result<()> {
        // Before the port is let go: somebody's own connection could get it in between.
        if self.reserved.is_empty() {
            for (own, _) in &self.upstreams {
                self.reserved.push(reserve(*own)?);
            }
        }
        self.acceptors.shutdown().await;
        // What was accepted and not yet taken is reset like the rest.
        while let Ok((stream, _)) = self.accepted.try_recv() {
            let _ = stream.set_zero_linger();
        }
        Ok(())
    }
}

fn reserve(address: SocketAddr) -> Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // Connections of before may still be in TIME_WAIT, and the link itself may still listen.
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket
        .bind(address)
        .with_context(|| format!("the link's port {address}"))?;
    Ok(socket)
}

async fn accept(
    listener: TcpListener,
    upstream: SocketAddr,
    accepted: mpsc::UnboundedSender<(TcpStream, SocketAddr)>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if accepted.send((stream, upstream)).is_err() {
                    return;
                }
            }
            // Out of descriptors, or the client is gone already: the next may do.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(
    mut ports: Ports,
    mut orders: mpsc::UnboundedReceiver<(Order, answers::Sender<Result<()>>)>,
) {
    let (state, _) = watch::channel(State {
        mode: Mode::Open,
        delay: Duration::ZERO,
    });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some((order, done)) = order else { return };
                let outcome = obey(order, &state, &mut ports, &mut connections).await;
                let _ = done.send(outcome);
                if matches!(order, Order::End) {
                    return;
                }
            }
            Some((client, upstream)) = ports.accepted.recv() => {
                connections.spawn(connection(client, upstream, state.subscribe()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn obey(
    order: Order,
    state: &watch::Sender<State>,
    ports: &mut Ports,
    connections: &mut JoinSet<()>,
) -> Result<()> {
    match order {
        Order::Cut | Order::End => {
            ports.refuse().await?;
            state.send_modify(|state| state.mode = Mode::Cut);
            while connections.join_next().await.is_some() {}
            Ok(())
        }
        Order::Blackhole => {
            state.send_modify(|state| state.mode = Mode::Blackhole);
            ports.listen()
        }
        Order::Mend => {
            state.send_replace(State {
                mode: Mode::Open,
                delay: Duration::ZERO,
            });
            ports.listen()
        }
        Order::Slow(delay) => {
            state.send_modify(|state| state.delay = delay);
            Ok(())
        }
    }
}

/// Passes bytes until both sides have said all, one of them breaks, or the link is cut.
async fn connection(
    mut client: TcpStream,
    upstream: SocketAddr,
    mut state: watch::Receiver<State>,
) {
    let mut own = state.clone();
    let cut = async move {
        // The sender lives as long as the link; without it the link is gone, which is cut as well.
        let _ = own.wait_for(|state| state.mode == Mode::Cut).await;
    };
    let mut server = None;
    let whole = tokio::select! {
        passed = pass(&mut client, &mut server, upstream, &mut state) => passed.is_ok(),
        () = cut => false,
    };
    if !whole {
        let _ = client.set_zero_linger();
        if let Some(server) = &server {
            let _ = server.set_zero_linger();
        }
    }
}

async fn pass(
    client: &mut TcpStream,
    server: &mut Option<TcpStream>,
    upstream: SocketAddr,
    state: &mut watch::Receiver<State>,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    // A black hole swallows the first packet too: the server does not learn of the connection.
    opened(state).await;
    let server = server.insert(TcpStream::connect(upstream).await?);
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(
        way(from_client, to_server, state.clone()),
        way(from_server, to_client, state.clone()),
    )?;
    Ok(())
}

async fn opened(state: &mut watch::Receiver<State>) {
    let _ = state.wait_for(|state| state.mode == Mode::Open).await;
}

/// One direction: reads, and writes each piece when its time has come; the end is passed on as well.
async fn way(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut state: watch::Receiver<State>,
) -> std::io::Result<()> {
    /// Pieces on their way: enough for a window of traffic, and a bound on memory.
    const ON_THE_WAY: usize = 64;
    let (send, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let reading_state = state.clone();
    let reading = async move {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let count = from.read(&mut buffer).await?;
            let when = Instant::now() + reading_state.borrow().delay;
            // An empty piece is the end.
            let piece = buffer[..count].to_vec();
            if send.send((when, piece)).await.is_err() || count == 0 {
                return Ok(());
            }
        }
    };
    let writing = async move {
        while let Some((when, piece)) = due.recv().await {
            tokio::time::sleep_until(when).await;
            opened(&mut state).await;
            if piece.is_empty() {
                return to.shutdown().await;
            }
            to.write_all(&piece).await?;
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;

    /// A server that says everything back, and its address.
    fn echo() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut reading = stream.try_clone().unwrap();
                    let _ = std::io::copy(&mut reading, &mut stream);
                    let _ = stream.shutdown(std::net::Shutdown::Write);
                });
            }
        });
        address
    }

    fn connect(address: &str) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream
    }

    fn ask(stream: &mut TcpStream, text: &str) -> std::io::Result<String> {
        stream.write_all(text.as_bytes())?;
        let mut answer = vec![0; text.len()];
        stream.read_exact(&mut answer)?;
        Ok(String::from_utf8(answer).unwrap())
    }

    #[test]
    fn passes_everything_and_the_end() {
        let link = Link::start(&echo()).unwrap();
        let mut stream = connect(link.address());
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let mut writing = stream.try_clone().unwrap();
        let data = sent.clone();
        std::thread::spawn(move || {
            writing.write_all(&data).unwrap();
            writing.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert!(back == sent, "{} of {} bytes", back.len(), sent.len());
    }

    #[test]
    fn cut_resets_and_refuses_until_mended() {
        let link = Link::start(&echo()).unwrap();
        let mut stream = connect(link.address());
        assert_eq!(ask(&mut stream, "before").unwrap(), "before");
        link.cut().unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        for _ in 0..3 {
            let error = TcpStream::connect(link.address()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
        link.cut().unwrap();
        link.mend().unwrap();
        link.mend().unwrap();
        assert_eq!(ask(&mut connect(link.address()), "after").unwrap(), "after");
    }

    #[test]
    fn a_black_hole_accepts_and_passes_nothing() {
        let link = Link::start(&echo()).unwrap();
        let mut old = connect(link.address());
        assert_eq!(ask(&mut old, "before").unwrap(), "before");
        link.blackhole().unwrap();
        let mut new = connect(link.address());
        for stream in [&mut old, &mut new] {
            stream
                .set_read_timeout(Some(Duration::from_millis(300)))
                .unwrap();
            stream.write_all(b"held").unwrap();
            let error = stream.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        }
        link.mend().unwrap();
        for stream in [&mut old, &mut new] {
            stream
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"held");
        }
        link.cut().unwrap();
        link.blackhole().unwrap();
        connect(link.address());
    }

    #[test]
    fn slow_delays_each_way_and_keeps_order() {
        let link = Link::start(&echo()).unwrap();
        let mut stream = connect(link.address());
        link.slow(Duration::from_millis(200)).unwrap();
        let begun = Instant::now();
        for number in 0..10u8 {
            stream.write_all(&[number]).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).unwrap();
        let took = begun.elapsed();
        assert_eq!(answer, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(took >= Duration::from_millis(400), "{took:?}");
        // A delay and not a rate: ten pieces do not take ten times as long.
        assert!(took < Duration::from_millis(2000), "{took:?}");
        link.mend().unwrap();
        let begun = Instant::now();
        ask(&mut stream, "quick").unwrap();
        assert!(begun.elapsed() < Duration::from_millis(400));
    }

    #[test]
    fn a_list_has_an_address_each() {
        let gone = {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().to_string()
        };
        let link = Link::start(&format!("{},{gone}", echo())).unwrap();
        let addresses: Vec<&str> = link.address().split(',').collect();
        assert_eq!(addresses.len(), 2);
        assert_eq!(ask(&mut connect(addresses[0]), "one").unwrap(), "one");
        // Nothing listens behind the second: the connection breaks.
        assert!(ask(&mut connect(addresses[1]), "two").is_err());
        let address = addresses[0].to_string();
        drop(link);
        assert!(TcpStream::connect(address).is_err());
    }
}
