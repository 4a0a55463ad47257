// Sets of a plan's fields: which of them a rule looks at.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "estimator/plan/plan.h"

namespace shardplan {

enum class PlanField {
  kTp,
  kCp,
  kEp,
  kEtp,
  kPp,
  kVpp,
  kLayersPerChunk,
  kDp,
  kDpReplicate,
  kZero,
  kMicroBatch,
  kSequenceParallel,
  kCpMethod,
  kRecompute,
  kSchedule,
  kRankOrder,
  kPrecision,
  kGradDtype,
  kMasterDtype,
  kExpAvgDtype,
  kExpAvgSqDtype,
  kOffload,
  kMoeBufferFactor,
};
inline constexpr int kNumPlanFields = 23;

class PlanFields {
 public:
  constexpr PlanFields() = default;
  constexpr PlanFields(std::initializer_list<PlanField> fields) {
    for (const PlanField field : fields) { bits_ |= bit(field); }
  }
  static constexpr PlanFields all() {
    PlanFields fields;
    fields.bits_ = (std::uint32_t{1} << kNumPlanFields) - 1;
    return fields;
  }
  constexpr bool has(PlanField field) const { return (bits_ & bit(field)) != 0; }
  constexpr bool meets(PlanFields other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr PlanFields joined(PlanFields other) const {
    other.bits_ |= bits_;
    return other;
  }
  friend constexpr bool operator==(PlanFields, PlanFields) = default;

 private:
  static constexpr std::uint32_t bit(PlanField field) {
    return std::uint32_t{1} << static_cast<int>(field);
  }
  std::uint32_t bits_ = 0;
};

// Which field a pointer to a member of Plan names; of all of them for a pointer to a field that is
// not listed.
template <class Member>
constexpr PlanFields fields_of(Member Plan::*field) {
  struct NamedMember {
    Member Plan::*member;
    PlanField name;
  };
  const auto among = [field](std::initializer_list<NamedMember> rows) {
    for (const NamedMember& row : rows) {
      if (row.member == field) {
        return PlanFields{row.name};
      }
    }
    return PlanFields::all();
  };
  if constexpr (std::is_same_v<Member, std::int64_t>) {
    return among({{&Plan::tp, PlanField::kTp},
                  {&Plan::cp, PlanField::kCp},
                  {&Plan::ep, PlanField::kEp},
                  {&Plan::etp, PlanField::kEtp},
                  {&Plan::pp, PlanField::kPp},
                  {&Plan::vpp, PlanField::kVpp},
                  {&Plan::dp, PlanField::kDp},
                  {&Plan::dp_replicate, PlanField::kDpReplicate},
                  {&Plan::zero, PlanField::kZero},
                  {&Plan::micro_batch, PlanField::kMicroBatch}});
  } else if constexpr (std::is_same_v<Member, DType>) {
    return among({{&Plan::grad_dtype, PlanField::kGradDtype},
                  {&Plan::master_dtype, PlanField::kMasterDtype},
                  {&Plan::exp_avg_dtype, PlanField::kExpAvgDtype},
                  {&Plan::exp_avg_sq_dtype, PlanField::kExpAvgSqDtype}});
  } else if constexpr (std::is_same_v<Member, Precision>) {
    return among({{&Plan::precision, PlanField::kPrecision}});
  } else if constexpr (std::is_same_v<Member, Schedule>) {
    return among({{&Plan::schedule, PlanField::kSchedule}});
  } else if constexpr (std::is_same_v<Member, CpMethod>) {
    return among({{&Plan::cp_method, PlanField::kCpMethod}});
  } else {
    return PlanFields::all();
  }
}

}  // namespace shardplan
