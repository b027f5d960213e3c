;;; Hash tables, lists and bignums, enough for many collections.
(defun work (n)
  (let ((table (make-hash-table :test 'equal)) (sum 0))
    (dotimes (i n)
      (setf (gethash (format nil "key ~a" (mod (* i 7919) 200003)) table) (list i (* i i) (float i))))
    (maphash (lambda (key value) (incf sum (+ (length key) (second value)))) table)
    (format t "~a ~a~%" (hash-table-count table) sum)
    (format t "~a~%" (mod (reduce #'* (loop for i from 1 to 8000 collect i)) 1000000007000003))))
(work 500000)
