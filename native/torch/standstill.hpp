// A moment in which no other thread is in an operator.
#pragma once

namespace ebbtide {

// A thread enters an operator and leaves it. It waits to enter while another thread has a Standstill. What makes contents anew does
// not wait, as others may wait for it. Nor does a thread that holds the GIL: whoever has the Standstill would wait for that.
void enter_operator();
void leave_operator();

// Says whether another thread is in an operator now. One that enters later sees what this thread did before it asked.
bool others_in_operators();

// As long as it lives, no other thread is in an operator that the recorder has seen begin, where that is `reached`. It is not where
// one goes on for long. Whoever makes this holds the GIL all the time.
class Standstill {
 public:
  Standstill();
  ~Standstill();
  Standstill(const Standstill&) = delete;
  Standstill& operator=(const Standstill&) = delete;

  bool reached() const { return reached_; }

 private:
  bool reached_ = false;
};

}  // namespace ebbtide
