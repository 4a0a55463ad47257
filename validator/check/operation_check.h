// The check of single operations by kind: operations.cpp, and where a file is named that one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "validator/check/problems.h"
#include "validator/program/program.h"

namespace shardplan {

bool are_apart(const View& a, const View& b);

// All operations of a program, one after the other, as they are launched.
class OperationCheck {
 public:
  explicit OperationCheck(const Program& program)
      : program_(program), recorded_(static_cast<std::size_t>(program.num_events), false) {}
  Problems run();

 private:
  void report(const std::string& what) {
    problems_.push_back(place_of(program_, index_) + " " + what);
  }
  const Tensor& tensor(const View& view) const {
    return program_.tensors[static_cast<std::size_t>(view.tensor)];
  }
  std::string named(const View& view) const {
    return "tensor " + std::to_string(view.tensor) + " '" + tensor(view).name + "'";
  }
  std::int64_t members(const Operation& op) const;
  void check_group(const Operation& op);
  void check_arguments(const Operation& op);
  void check_views(const std::vector<View>& views, std::int64_t expected, std::int64_t optional,
                   const std::string& what);
  void check_view(const View& view);
  void expect(bool holds, const View& view, const std::string& expected);
  void expect_type(const View& view, const View& like);
  void check_fp8(const Operation& op);

  void expect_found(bool holds, const View& view) {
    expect(holds, view, "what the product in fp8 before it has left rounded");
  }
  void check_copy(const Operation& op);
  void check_rotation(const Operation& op);
  void check_gemm(const Operation& op);

  // communication_shapes.cpp
  void check_collective(const Operation& op);

  // Where the parts of an exchange lie, elements of a tensor.
  struct Arrival {
    std::int64_t tensor = -1;
    std::int64_t begin = 0;  // of the first one
    std::int64_t end = 0;    // of the last one
    std::int64_t own = 0;    // begin of this member's own, which is not written
    std::int64_t part = 0;   // elements of one
  };

  void check_exchanged_parts(const Operation& op);
  std::int64_t own_part(const Operation& sum) const;
  void check_sum_of_parts(const Operation& op);

  // operations.cpp
  void check_attention(const Operation& op);
  void expect_shape(const View& view, std::int64_t rows, std::int64_t cols);

  // expert_shapes.cpp
  void check_exchange(const Operation& op);
  void check_router(const Operation& op);
  void check_rows_of_experts(const Operation& op);
  void check_grouped(const Operation& op);
  void check_expert_swiglu(const Operation& op);

  // operations.cpp
  void check_shapes(const Operation& op);
  void check_events(const Operation& op);

  const Program& program_;
  std::vector<bool> recorded_;
  std::int64_t index_ = 0;
  std::vector<Arrival> arrivals_;
  const Operation* fp8_columns_ = nullptr;  // whose in0 is rounded by columns
  const Operation* fp8_weight_ = nullptr;   // whose in1 is rounded
  Problems problems_;
};

}  // namespace shardplan
