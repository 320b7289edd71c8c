// Storage of a pool's open reservations: ids, look-up, and the lists that they stand in.
//
// Every operation is O(1), but for the lease heap's O(log open). An id is the pool's number, a
// generation and a place in the table, so that looking one up needs no hash and an id that was
// closed, or was given out by an earlier process, finds nothing.
#ifndef WARMPATH_CORE_FLEET_RESERVATION_TABLE_H_
#define WARMPATH_CORE_FLEET_RESERVATION_TABLE_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"
#include "core/fleet/load_ledger.h"
#include "core/fleet/prefix_overlay.h"

namespace warmpath {

// A place in the table. 0 is no place.
using Place = std::uint32_t;

// Neighbours in one doubly linked list of places.
struct PlaceLink {
  Place previous = 0;
  Place next = 0;
};

struct OpenReservation {
  Reservation reservation;
  std::uint64_t loose_tokens = 0;  // of the prompt, in no full routing block
  std::int64_t prefill_ns = 0;     // what it adds to pend_w; integer, so that sums stay exact
  PrefixOverlay::PathEnd path = PrefixOverlay::kEmpty;  // its chain's, in the overlay of its kind
  PlaceLink at_target;
  PlaceLink at_holder;
  PlaceLink pending;     // pend_w
  bool drained = false;  // left pend_w by the clock, without a first token
  std::uint32_t generation = 0;
  bool in_use = false;
};

// Not thread-safe.
class ReservationTable {
 public:
  static constexpr std::uint32_t kMaxPlaces = (1u << 21) - 1;

  ReservationTable(std::uint32_t pool_number, std::uint64_t id_seed, std::uint32_t max_open);

  // 0 when the table is full. The reservation's id is set.
  Place Add(Reservation reservation);
  // The place must be in no list and hold no lease.
  Reservation Remove(Place place);
  // 0 when the id is not open.
  Place Find(ReservationId id) const;
  OpenReservation& operator[](Place place) { return entries_[place]; }
  const OpenReservation& operator[](Place place) const { return entries_[place]; }
  std::uint32_t size() const { return size_; }

  // Leases, by expiry.
  void SetLease(Place place, absl::Time until);
  void DropLease(Place place);
  // The place whose lease ends first; 0 when there is none.
  Place FirstLease() const { return leases_.empty() ? 0 : leases_.front().place; }

 private:
  static constexpr std::uint32_t kNoLease = ~std::uint32_t{0};
  struct Lease {
    absl::Time until;
    Place place = 0;
  };

  ReservationId IdOf(Place place) const;
  void SetLeaseAt(std::size_t index, const Lease& lease);
  void SiftUp(std::size_t index, const Lease& lease);
  void SiftDown(std::size_t index, const Lease& lease);

  const std::uint64_t pool_bits_;
  const std::uint64_t id_seed_;
  const std::uint32_t max_open_;
  std::deque<OpenReservation> entries_;
  std::vector<Place> free_;
  std::vector<Lease> leases_;  // binary heap
  // By place: where in leases_, or kNoLease. Not in the entries, each of which lies in cache lines
  // of its own: a lease that ends early passes a dozen others.
  std::vector<std::uint32_t> lease_index_;
  std::uint32_t size_ = 0;
};

// A doubly linked list through one of the links of OpenReservation.
template <PlaceLink OpenReservation::*kLink>
class PlaceList {
 public:
  Place front() const { return front_; }
  bool empty() const { return front_ == 0; }
  std::uint32_t size() const { return size_; }

  void PushBack(ReservationTable& table, Place place) {
    table[place].*kLink = PlaceLink{.previous = back_, .next = 0};
    (back_ == 0 ? front_ : (table[back_].*kLink).next) = place;
    back_ = place;
    ++size_;
  }
  void Erase(ReservationTable& table, Place place) {
    PlaceLink& link = table[place].*kLink;
    (link.previous == 0 ? front_ : (table[link.previous].*kLink).next) = link.next;
    (link.next == 0 ? back_ : (table[link.next].*kLink).previous) = link.previous;
    link = PlaceLink();
    --size_;
  }

 private:
  Place front_ = 0;
  Place back_ = 0;
  std::uint32_t size_ = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_RESERVATION_TABLE_H_
