#include "core/fleet/reservation_table.h"

#include <algorithm>
#include <utility>

namespace warmpath {
namespace {

constexpr int kPlaceBits = 21;
constexpr int kGenerationBits = 27;
constexpr std::uint32_t kGenerationMask = (1u << kGenerationBits) - 1;
constexpr std::uint64_t kPlaceMask = (1u << kPlaceBits) - 1;

}  // namespace

ReservationTable::ReservationTable(std::uint32_t pool_number, std::uint64_t id_seed,
                                   std::uint32_t max_open)
    : pool_bits_(std::uint64_t{pool_number} << (kPlaceBits + kGenerationBits)),
      id_seed_(id_seed),
      max_open_(std::min(max_open, kMaxPlaces)),
      entries_(1),
      lease_index_(1, kNoLease) {}

ReservationId ReservationTable::IdOf(Place place) const {
  return pool_bits_ | std::uint64_t{entries_[place].generation} << kPlaceBits | place;
}

Place ReservationTable::Add(Reservation reservation) {
  if (size_ == max_open_) return 0;
  Place place;
  if (free_.empty()) {
    place = static_cast<Place>(entries_.size());
    entries_.emplace_back();
    lease_index_.push_back(kNoLease);
    entries_[place].generation =
        static_cast<std::uint32_t>(id_seed_ + place * 0x9e3779b97f4a7c15ULL) & kGenerationMask;
  } else {
    place = free_.back();
    free_.pop_back();
  }
  OpenReservation& entry = entries_[place];
  entry.generation = (entry.generation + 1) & kGenerationMask;
  entry.in_use = true;
  lease_index_[place] = kNoLease;
  entry.reservation = std::move(reservation);
  entry.reservation.id = IdOf(place);
  ++size_;
  return place;
}

Reservation ReservationTable::Remove(Place place) {
  OpenReservation& entry = entries_[place];
  Reservation reservation = std::move(entry.reservation);
  entry.reservation = Reservation();
  entry.in_use = false;
  free_.push_back(place);
  --size_;
  return reservation;
}

Place ReservationTable::Find(ReservationId id) const {
  const std::uint64_t place = id & kPlaceMask;
  if (place == 0 || place >= entries_.size()) return 0;
  const OpenReservation& entry = entries_[place];
  return entry.in_use && entry.reservation.id == id ? static_cast<Place>(place) : 0;
}

void ReservationTable::SetLeaseAt(std::size_t index, const Lease& lease) {
  leases_[index] = lease;
  lease_index_[lease.place] = static_cast<std::uint32_t>(index);
}

void ReservationTable::SiftUp(std::size_t index, const Lease& lease) {
  while (index > 0) {
    const std::size_t parent = (index - 1) / 2;
    if (leases_[parent].until <= lease.until) break;
    SetLeaseAt(index, leases_[parent]);
    index = parent;
  }
  SetLeaseAt(index, lease);
}

void ReservationTable::SiftDown(std::size_t index, const Lease& lease) {
  for (;;) {
    std::size_t child = 2 * index + 1;
    if (child >= leases_.size()) break;
    if (child + 1 < leases_.size() && leases_[child + 1].until < leases_[child].until) ++child;
    if (lease.until <= leases_[child].until) break;
    SetLeaseAt(index, leases_[child]);
    index = child;
  }
  SetLeaseAt(index, lease);
}

void ReservationTable::SetLease(Place place, absl::Time until) {
  entries_[place].reservation.lease_until = until;
  const Lease lease{.until = until, .place = place};
  std::size_t index = lease_index_[place];
  if (index == kNoLease) {
    index = leases_.size();
    leases_.push_back(lease);
    SiftUp(index, lease);
  } else if (index > 0 && until < leases_[(index - 1) / 2].until) {
    SiftUp(index, lease);
  } else {
    SiftDown(index, lease);
  }
}

void ReservationTable::DropLease(Place place) {
  const std::size_t index = lease_index_[place];
  if (index == kNoLease) return;
  lease_index_[place] = kNoLease;
  const Lease last = leases_.back();
  leases_.pop_back();
  if (index == leases_.size()) return;
  // Not through SetLease: its shortcut compares with an entry that is no longer there.
  SetLeaseAt(index, last);
  if (index > 0 && last.until < leases_[(index - 1) / 2].until) {
    SiftUp(index, last);
  } else {
    SiftDown(index, last);
  }
}

}  // namespace warmpath
