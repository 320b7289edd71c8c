#include "client/agent/feed/state_journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/agent/canonical/byte_io.h"
#include "client/agent/events/vllm_decoder.h"
#include "client/agent/feed/payload_hash.h"
#include "core/base/status.h"

namespace warmpath {
namespace {

// File: magic, instance (16 bytes), epoch, hash of these three; then records of
// { body length u32, type u8, body, hash of type and body u64 }.
constexpr std::string_view kMagic = "WPJRNL01";
constexpr std::size_t kHeaderBytes = 8 + 16 + 8 + 8;
constexpr std::size_t kRecordOverhead = 4 + 1 + 8;

enum RecordType : std::uint8_t {
  kPosition = 1,
  kSnapshot = 2,
  kBatch = 3,
  kLoss = 4,
  kProcessStart = 5,
};

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 31;
constexpr std::size_t kMinGrowth = 4 << 20;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

absl::Status FileError(std::string_view what, const std::string& path) {
  const int error = errno;
  const std::string message =
      absl::StrCat("state file ", path, ": ", ToAbsl(what), ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
}

absl::Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return FileError("can not write", path);
    }
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return FileError("can not open", path);
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return FileError("can not stat", path);
  if (!S_ISREG(info.st_mode) || static_cast<std::uint64_t>(info.st_size) > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("state file ", path, ": not a regular file of at most 2 GiB"));
  }
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError("can not read", path);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

// Writes `bytes` as a new file in place of `path`, mode 0600, and leaves it open for appending.
absl::StatusOr<int> ReplaceFile(const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".new";
  ::unlink(temporary.c_str());
  FileDescriptor fd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600));
  if (fd.get() < 0) return FileError("can not create its replacement", path);
  absl::Status status = WriteAll(fd.get(), bytes, path);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = FileError("can not rename its replacement", path);
  }
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  return fd.Release();
}

void PutRecord(RecordType type, std::string_view body, std::string* out) {
  ByteWriter writer(out);
  writer.Put(static_cast<std::uint32_t>(body.size()));
  const std::size_t hashed = out->size();
  writer.Put(static_cast<std::uint8_t>(type));
  out->append(body);
  writer.Put(PayloadHash(std::string_view(*out).substr(hashed)));
}

std::string PositionBody(const FeedPosition& position) {
  std::string body;
  ByteWriter out(&body);
  out.Put(
      static_cast<std::uint8_t>((position.last_seq ? 1 : 0) | (position.process_start ? 2 : 0)));
  out.Put(position.last_seq.value_or(0));
  out.Put(position.last_payload_hash);
  out.Put(std::bit_cast<std::uint64_t>(position.process_start.value_or(0)));
  return body;
}

bool ReadPosition(std::string_view body, FeedPosition* position) {
  ByteReader in(body);
  std::uint8_t flags = 0;
  std::uint64_t seq = 0;
  std::uint64_t start = 0;
  if (!in.Get(&flags) || !in.Get(&seq) || !in.Get(&position->last_payload_hash) ||
      !in.Get(&start)) {
    return false;
  }
  if ((flags & 1) != 0) position->last_seq = seq;
  if ((flags & 2) != 0) position->process_start = std::bit_cast<double>(start);
  return true;
}

// Applies one record. An error means that the file can not be trusted from here on.
absl::Status ReplayRecord(std::uint8_t type, std::string_view body, RestoredState* state,
                          Canonical* canonical) {
  ByteReader in(body);
  std::uint64_t seq = 0;
  std::uint64_t hash = 0;
  switch (type) {
    case kPosition:
      if (!ReadPosition(body, &state->position)) break;
      return absl::OkStatus();
    case kSnapshot:
      return canonical->Restore(body);
    case kBatch: {
      if (!in.Get(&seq) || !in.Get(&hash)) break;
      const absl::StatusOr<EngineBatch> batch = DecodeKvEvents(in.rest());
      // The same as when it came: a payload that is no batch is a loss.
      if (batch.ok()) {
        canonical->Apply(*batch);
      } else {
        canonical->MarkLoss(LossKind::kGap);
      }
      state->position.last_seq = seq;
      state->position.last_payload_hash = hash;
      ++state->batches;
      return absl::OkStatus();
    }
    case kLoss: {
      std::uint8_t kind = 0;
      if (!in.Get(&kind)) break;
      canonical->MarkLoss(kind == 0 ? LossKind::kGap : LossKind::kMissedStart);
      return absl::OkStatus();
    }
    case kProcessStart:
      if (!in.Get(&seq)) break;
      state->position.process_start = std::bit_cast<double>(seq);
      return absl::OkStatus();
    default:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("record of unknown type ", static_cast<int>(type)));
}

}  // namespace

absl::StatusOr<AgentInstance> LoadOrCreateAgentInstance(const std::string& path, Random& random) {
  AgentInstance instance{};
  const absl::StatusOr<std::string> bytes = ReadAll(path);
  if (bytes.ok()) {
    if (bytes->size() != instance.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "state file ", path, ": holds ", bytes->size(),
          " bytes instead of the 16 of an agent instance: remove it to have a new one drawn"));
    }
    std::copy(bytes->begin(), bytes->end(), instance.begin());
    return instance;
  }
  if (!absl::IsNotFound(bytes.status())) return bytes.status();
  for (std::uint8_t& byte : instance) byte = static_cast<std::uint8_t>(random());
  WARMPATH_ASSIGN_OR_RETURN(
      const int fd,
      ReplaceFile(
          path, std::string_view(reinterpret_cast<const char*>(instance.data()), instance.size())));
  ::close(fd);
  return instance;
}

absl::StatusOr<RestoredState> StateJournal::Load(const std::string& path, Canonical* canonical) {
  WARMPATH_ASSIGN_OR_RETURN(const std::string bytes, ReadAll(path));
  const auto useless = [&](std::string_view why) {
    canonical->Clear();
    return absl::InvalidArgumentError(absl::StrCat("state file ", path, ": ", ToAbsl(why)));
  };
  if (bytes.size() < kHeaderBytes || bytes.compare(0, kMagic.size(), kMagic) != 0) {
    return useless("not a journal of this version");
  }
  RestoredState state;
  std::copy_n(bytes.begin() + kMagic.size(), state.agent_instance.size(),
              state.agent_instance.begin());
  const std::string_view all(bytes);
  ByteReader header(all.substr(kMagic.size() + state.agent_instance.size()));
  std::uint64_t hash = 0;
  header.Get(&state.epoch);
  header.Get(&hash);
  if (hash != PayloadHash(all.substr(0, kHeaderBytes - 8))) return useless("damaged header");

  bool has_snapshot = false;
  std::string_view rest = all.substr(kHeaderBytes);
  while (!rest.empty()) {
    ByteReader in(rest);
    std::uint32_t size = 0;
    if (!in.Get(&size) || rest.size() < kRecordOverhead + std::size_t{size}) {
      state.truncated = "the last record is torn";
      break;
    }
    const std::string_view hashed = rest.substr(4, 1 + std::size_t{size});
    ByteReader tail(rest.substr(5 + std::size_t{size}));
    tail.Get(&hash);
    if (hash != PayloadHash(hashed)) {
      state.truncated = "a record fails its checksum";
      break;
    }
    const auto type = static_cast<std::uint8_t>(hashed.front());
    const absl::Status applied = ReplayRecord(type, hashed.substr(1), &state, canonical);
    if (!applied.ok()) {
      canonical->Clear();
      return Annotate(applied, absl::StrCat("state file ", path));
    }
    has_snapshot |= type == kSnapshot;
    rest.remove_prefix(kRecordOverhead + size);
  }
  if (!has_snapshot) return useless("its snapshot is torn");
  return state;
}

StateJournal::StateJournal(std::string path, const AgentInstance& instance)
    : path_(std::move(path)), instance_(instance) {}

StateJournal::~StateJournal() {
  if (fd_ >= 0) ::close(fd_);
}

absl::StatusOr<std::unique_ptr<StateJournal>> StateJournal::Open(const std::string& path,
                                                                 const AgentInstance& instance,
                                                                 Epoch epoch,
                                                                 const FeedPosition& position,
                                                                 const Canonical& canonical) {
  std::unique_ptr<StateJournal> journal(new StateJournal(path, instance));
  WARMPATH_RETURN_IF_ERROR(journal->Reset(epoch, position, canonical));
  return journal;
}

absl::Status StateJournal::Reset(Epoch epoch, const FeedPosition& position,
                                 const Canonical& canonical) {
  std::string bytes(kMagic);
  bytes.append(reinterpret_cast<const char*>(instance_.data()), instance_.size());
  ByteWriter(&bytes).Put(epoch);
  ByteWriter(&bytes).Put(PayloadHash(bytes));
  PutRecord(kPosition, PositionBody(position), &bytes);
  PutRecord(kSnapshot, canonical.Serialize(), &bytes);
  absl::StatusOr<int> fd = ReplaceFile(path_, bytes);
  if (!fd.ok()) {
    broken_ = true;
    return fd.status();
  }
  if (fd_ >= 0) ::close(fd_);
  fd_ = *fd;
  broken_ = false;
  bytes_ = bytes.size();
  snapshot_bytes_ = bytes.size();
  return absl::OkStatus();
}

absl::Status StateJournal::Append(std::uint8_t type, std::string_view head, std::string_view body) {
  if (broken_) {
    return absl::UnavailableError(
        absl::StrCat("state file ", path_, ": stopped after an earlier write error"));
  }
  scratch_.clear();
  ByteWriter out(&scratch_);
  out.Put(static_cast<std::uint32_t>(head.size() + body.size()));
  out.Put(type);
  scratch_.append(head);
  scratch_.append(body);
  out.Put(PayloadHash(std::string_view(scratch_).substr(4)));
  const absl::Status status = WriteAll(fd_, scratch_, path_);
  if (!status.ok()) {
    // Whatever part of the record went out must not stand before a later one.
    broken_ = true;
    if (::ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) {
      return FileError("can not be cut back after a write error", path_);
    }
    return status;
  }
  bytes_ += scratch_.size();
  return absl::OkStatus();
}

absl::Status StateJournal::AppendBatch(std::uint64_t seq, std::uint64_t payload_hash,
                                       std::string_view payload) {
  std::string head;
  ByteWriter out(&head);
  out.Put(seq);
  out.Put(payload_hash);
  return Append(kBatch, head, payload);
}

absl::Status StateJournal::AppendLoss(LossKind kind) {
  const char byte = kind == LossKind::kGap ? 0 : 1;
  return Append(kLoss, std::string_view(&byte, 1), {});
}

absl::Status StateJournal::AppendProcessStart(double unix_seconds) {
  std::string head;
  ByteWriter(&head).Put(std::bit_cast<std::uint64_t>(unix_seconds));
  return Append(kProcessStart, head, {});
}

bool StateJournal::WantsCompaction() const {
  return broken_ || bytes_ - snapshot_bytes_ > std::max(kMinGrowth, 2 * snapshot_bytes_);
}

}  // namespace warmpath
