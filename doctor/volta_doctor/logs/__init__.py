"""What people paste: texts of any kind and size, and what their lines say of a host."""
