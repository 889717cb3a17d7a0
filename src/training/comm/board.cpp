// SPDX-License-Identifier: Apache-2.0
#include "training/comm/board.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "core/base/str.h"
#include "training/comm/backends/backends.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace accelerate {
namespace {

using Clock = std::chrono::steady_clock;

// No process may shrink the memory while another one reads it.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

enum OfferWord { kToken, kToken2, kPid, kFile, kAnswer };

std::string name_for(int64_t token, int64_t token2) {
  return str_cat(
      "accelerate-",
      static_cast<uint64_t>(token),
      '-',
      static_cast<uint64_t>(token2));
}

int make_memory(const std::string& name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int file = memfd_create(name.c_str(), kFlags | MFD_NOEXEC_SEAL);
  // Kernels before 6.3 do not support this flag.
  return file < 0 && errno == EINVAL ? memfd_create(name.c_str(), kFlags)
                                     : file;
}

struct flock whole_file() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

bool is_held(int file) {
  auto lock = whole_file();
  return fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::string link_target(const std::string& path) {
  char target[PATH_MAX];
  const auto length = readlink(path.c_str(), target, sizeof(target));
  return length < 0 ? "" : std::string(target, static_cast<size_t>(length));
}

// The address for a futex. Peers map it read-only, which is enough for waiting.
void wait_while(const std::atomic<uint32_t>& word, uint32_t value) {
  const timespec timeout{
      0, std::chrono::nanoseconds(Board::kBetweenLooks).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &timeout, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

} // namespace

/// A rank is at most one message ahead of the others, because it sends the next
/// one only after it has read this one from all of them. So two slots are
/// enough.
struct Board::Page {
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
  alignas(64) std::atomic<uint32_t> num_sent;
  alignas(64) std::atomic<uint32_t> is_waiting;
  alignas(64) int64_t messages[2][kMessageWords];
};

class Board::Exchange final : public c10d::Work {
 public:
  Exchange(std::shared_ptr<Board> board, std::shared_ptr<Pending> pending)
      : board_(std::move(board)), pending_(std::move(pending)) {}
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    board_->collect(*pending_);
    return true;
  }

 private:
  std::shared_ptr<Board> board_;
  std::shared_ptr<Pending> pending_;
};

void Board::Unmap::operator()(const Page* page) const {
  munmap(const_cast<Page*>(page), sizeof(Page));
}

std::shared_ptr<Board> Board::of(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  struct Entry {
    c10::weak_intrusive_ptr<c10d::ProcessGroup> group;
    std::shared_ptr<Board> board;
  };
  static std::mutex mutex;
  static auto* all = new std::map<const c10d::ProcessGroup*, Entry>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase_if(
      *all, [](const auto& entry) { return entry.second.group.expired(); });
  const auto known = all->find(group.get());
  if (known != all->end()) {
    return known->second.board;
  }
  const c10::weak_intrusive_ptr<c10d::ProcessGroup> weak(group);
  auto board =
      std::make_shared<Board>(group->getRank(), group->getSize(), [weak] {
        const auto locked = weak.lock();
        return locked ? timeout_of(*locked->getBackend(c10::kCPU))
                      : std::chrono::milliseconds(0);
      });
  all->emplace(group.get(), Entry{weak, board});
  return board;
}

Board::Board(int rank, int world_size, Timeout timeout)
    : rank_(rank), world_size_(world_size), timeout_(std::move(timeout)) {}

// Defined here because `Page` is incomplete in the header.
Board::~Board() = default;

void Board::add_offer(const at::Tensor& row) {
  if (!page_ && answer_ == Answer::kUndecided && !make_page()) {
    answer_ = Answer::kNo;
    close();
  }
  auto* offer = row.data_ptr<int64_t>() + kMessageWords;
  offer[kToken] = token_[0];
  offer[kToken2] = token_[1];
  offer[kPid] = getpid();
  offer[kFile] = file_.get();
  offer[kAnswer] = static_cast<int64_t>(answer_);
}

void Board::read_offers(const at::Tensor& rows) {
  if (is_open_ || is_closed_) {
    return;
  }
  bool have_all_agreed = true;
  for (int rank = 0; rank < world_size_; ++rank) {
    const auto* offer = rows[rank].const_data_ptr<int64_t>() + kMessageWords;
    have_all_agreed =
        have_all_agreed && offer[kAnswer] == static_cast<int64_t>(Answer::kYes);
  }
  if (have_all_agreed) {
    is_open_ = true;
  } else if (answer_ == Answer::kUndecided && open_peers(rows)) {
    answer_ = Answer::kYes;
  } else {
    answer_ = Answer::kNo;
    peers_.clear();
    close();
  }
}

bool Board::make_page() {
  if (getrandom(token_, sizeof(token_), 0) != sizeof(token_)) {
    return false;
  }
  const auto name = name_for(token_[0], token_[1]);
  file_ = UniqueFile(make_memory(name));
  // Write the memory, so that a lack of it causes an error here and not a
  // signal later.
  const std::vector<char> zeros(sizeof(Page));
  const int file = file_.get();
  auto lock = whole_file();
  if (!file_ || pwrite(file, zeros.data(), zeros.size(), 0) != sizeof(Page) ||
      fcntl(file, F_ADD_SEALS, kSeals) != 0 ||
      fcntl(file, F_SETLK, &lock) != 0) {
    return false;
  }
  void* memory =
      mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) {
    return false;
  }
  page_.reset(static_cast<Page*>(memory));
  return true;
}

bool Board::open_peers(const at::Tensor& rows) {
  peers_.resize(static_cast<size_t>(world_size_));
  for (int rank = 0; rank < world_size_; ++rank) {
    const auto* row = rows[rank].const_data_ptr<int64_t>();
    if (rank != rank_ &&
        !open_peer(peers_[static_cast<size_t>(rank)], row + kMessageWords)) {
      return false;
    }
  }
  return true;
}

// The name contains a random number. So a file with that name is the offered
// one, and its process is on this host, in this PID namespace and of this user.
// The lock must also be held, unless ranks are threads or locks do not work.
bool Board::open_peer(Peer& peer, const int64_t* offer) {
  const auto path = str_cat("/proc/", offer[kPid], "/fd/", offer[kFile]);
  const auto name = name_for(offer[kToken], offer[kToken2]);
  if (link_target(path) != str_cat("/memfd:", name, " (deleted)")) {
    return false;
  }
  peer.file = UniqueFile(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int file = peer.file.get();
  if (!peer.file || (fcntl(file, F_GET_SEALS) & kSeals) != kSeals ||
      lseek(file, 0, SEEK_END) != sizeof(Page) || !is_held(file)) {
    return false;
  }
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) {
    return false;
  }
  peer.page.reset(static_cast<const Page*>(memory));
  return true;
}

c10::intrusive_ptr<c10d::Work> Board::start(
    const at::Tensor& row,
    const at::Tensor& rows) {
  check_is_usable();
  if (pending_) {
    collect(*pending_); // of another handle of the group
  }
  const uint32_t number = page_->num_sent.load() + 1;
  std::memcpy(
      page_->messages[number % 2],
      row.const_data_ptr<int64_t>(),
      sizeof(page_->messages[0]));
  page_->num_sent.store(number);
  if (std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
        return peer.page && peer.page->is_waiting.load() != 0;
      })) {
    wake_all(page_->num_sent);
  }
  pending_ = std::make_shared<Pending>(Pending{rows, number});
  return c10::make_intrusive<Exchange>(shared_from_this(), pending_);
}

void Board::collect(Pending& pending) {
  if (pending.is_done) {
    return;
  }
  check_is_usable();
  for (int rank = 0; rank < world_size_; ++rank) {
    const Page* page = page_.get();
    if (rank != rank_) {
      await(rank, pending);
      page = peers_[static_cast<size_t>(rank)].page.get();
    }
    std::memcpy(
        pending.rows.data_ptr<int64_t>() + rank * kRowWords,
        page->messages[pending.number % 2],
        sizeof(page->messages[0]));
  }
  pending.is_done = true;
  pending_.reset();
}

void Board::await(int rank, const Pending& pending) {
  const auto& peer = peers_[static_cast<size_t>(rank)];
  const auto& num_sent = peer.page->num_sent;
  // Message numbers wrap around. A peer's number is this one or an adjacent
  // one.
  const auto has_come = [&] {
    return static_cast<int32_t>(num_sent.load() - pending.number) >= 0;
  };
  if (has_come()) {
    return;
  }
  const auto begin = Clock::now();
  const std::chrono::duration<double> timeout = timeout_();
  std::string failure;
  page_->is_waiting.store(1);
  while (!has_come() && failure.empty()) {
    wait_while(num_sent, pending.number - 1);
    // A message that a rank sent before it ended is still valid.
    const bool is_there = has_come() || is_held(peer.file.get());
    if (has_come()) {
      break;
    }
    if (!is_there) {
      failure = str_cat("rank ", rank, " has left");
    } else if (Clock::now() - begin >= timeout) {
      failure = str_cat("timed out waiting for rank ", rank);
    } else if (is_closed_) {
      failure = "the group was shut down";
    }
  }
  page_->is_waiting.store(0);
  if (!failure.empty()) {
    // Close the board, so that others do not wait for messages that this rank
    // will not send.
    close();
    throw std::runtime_error(failure);
  }
}

void Board::check_is_usable() const {
  if (is_closed_) {
    throw std::runtime_error("an earlier exchange failed");
  }
}

// The pages stay mapped because threads may still read them.
void Board::close() {
  if (!is_closed_.exchange(true)) {
    file_.reset();
  }
}

} // namespace accelerate
