// An object that each thread has of its own.
#pragma once

#include <pthread.h>

namespace ebbtide {

// The calling thread's T, made at its first use. It outlives the thread's C++ thread_local objects, since their destructors may
// call operators. Like all that allocates, it is not for the fault handler [I6].
template <typename T>
T& of_this_thread() {
  static thread_local T* mine = nullptr;
  if (mine == nullptr) {
    static const pthread_key_t at_its_end = [] {
      pthread_key_t key{};
      pthread_key_create(&key, [](void* object) {
        mine = nullptr;  // where its destructor asks, there is another
        delete static_cast<T*>(object);
      });
      return key;
    }();
    mine = new T();
    pthread_setspecific(at_its_end, mine);
  }
  return *mine;
}

}  // namespace ebbtide
