// A set in ascending order, as std::set, kept in sorted arrays: the allocator's replay inserts and
// erases millions of elements of sets that mostly have fewer than a hundred.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace shardplan {

// T has operator<; equal elements are one. Inserting and erasing end the life of iterators.
template <class T>
class SortedArrays {
 public:
  class Iterator {
   public:
    const T& operator*() const { return (*arrays_)[array_][index_]; }
    const T* operator->() const { return &**this; }
    Iterator& operator++() {
      if (++index_ == (*arrays_)[array_].size()) {
        ++array_;
        index_ = 0;
      }
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    friend class SortedArrays;
    Iterator(const std::vector<std::vector<T>>& arrays, std::size_t array, std::size_t index)
        : arrays_(&arrays), array_(array), index_(index) {}

    const std::vector<std::vector<T>>* arrays_;
    std::size_t array_;
    std::size_t index_;
  };

  bool empty() const { return arrays_.empty(); }
  Iterator begin() const { return {arrays_, 0, 0}; }
  Iterator end() const { return {arrays_, arrays_.size(), 0}; }

  // The first element that is not less.
  Iterator lower_bound(const T& element) const {
    const std::size_t array = array_for(element);
    return array == arrays_.size() ? end() : Iterator(arrays_, array, place(array, element));
  }

  void insert(const T& element) {
    if (arrays_.empty()) {  // no array to look for a place in
      add_array(0);
      arrays_.front().push_back(element);
      return;
    }
    const std::size_t array = std::min(array_for(element), arrays_.size() - 1);
    std::vector<T>& items = arrays_[array];
    const std::size_t at = place(array, element);
    if (at < items.size() && !(element < items[at])) {
      return;
    }
    items.insert(items.begin() + static_cast<std::ptrdiff_t>(at), element);
    if (items.size() == kMost) {
      halve(array);
    }
  }

  // Nothing if there is no such element.
  void erase(const T& element) {
    const Iterator at = lower_bound(element);
    if (at != end() && !(element < *at)) {
      erase(at);
    }
  }

  void erase(const Iterator& at) {
    std::vector<T>& items = arrays_[at.array_];
    items.erase(items.begin() + static_cast<std::ptrdiff_t>(at.index_));
    if (items.empty()) {
      arrays_.erase(arrays_.begin() + static_cast<std::ptrdiff_t>(at.array_));
    }
  }

 private:
  static constexpr std::size_t kMost = 32;  // elements of an array, which never has none

  // The first array that ends with an element that is not less.
  std::size_t array_for(const T& element) const {
    const auto ends_before = [](const std::vector<T>& items, const T& e) {
      return items.back() < e;
    };
    return static_cast<std::size_t>(
        std::lower_bound(arrays_.begin(), arrays_.end(), element, ends_before) - arrays_.begin());
  }

  std::size_t place(std::size_t array, const T& element) const {
    const std::vector<T>& items = arrays_[array];
    return static_cast<std::size_t>(std::lower_bound(items.begin(), items.end(), element) -
                                    items.begin());
  }

  void add_array(std::size_t before) {
    arrays_.insert(arrays_.begin() + static_cast<std::ptrdiff_t>(before), std::vector<T>{})
        ->reserve(kMost);
  }

  void halve(std::size_t array) {
    add_array(array + 1);
    std::vector<T>& low = arrays_[array];
    const auto middle = low.begin() + static_cast<std::ptrdiff_t>(kMost / 2);
    arrays_[array + 1].assign(middle, low.end());
    low.erase(middle, low.end());
  }

  std::vector<std::vector<T>> arrays_;
};

}  // namespace shardplan
